# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.PHONY: help policy policy-full adds cyclonus cut names hostile routes build image manifests demo bench bench-stages bench-idle bench-kernels generate test test-unit lint fmt check-generated setup test-kernels test-verifier test-package test-k8s k8s-programs scale-k8s parity model pauses million endure locks matrix deb check-deb

export PATH := $(PATH):/usr/local/go/bin
export CGO_ENABLED := 0
GO ?= go
# The programs that make build builds, if they exist.
BINARIES := $(patsubst %/main.go,./%,$(wildcard loxilightd/main.go llcli/main.go loxilight-cni/main.go loxilight-agent/main.go))

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "%-18s %s\n", $$1, $$2}'

setup: ## install what the tests need (root, Debian 12)
	.ci/setup test

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

build: ## static binaries in bin/
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ $(BINARIES)

image: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
image: build ## container image with all programs, in bin/loxilight-image.tar (for docker load, ctr images import)
	$(GO) run ./tools/image/make -bin bin -o bin/loxilight-image.tar -version '$(VERSION)' \
		-revision "$$(git rev-parse HEAD 2>/dev/null)" $(notdir $(BINARIES))

demo: ## shows load balancing in temporary network namespaces (root, Debian 12)
	.ci/setup build
	$(MAKE) --no-print-directory build
	$(GO) build -o bin/ ./tests/demo
	@exec bin/demo

test: setup ## set up what the tests need and run every tier (root)
	$(GO) vet ./...
	$(GO) test -count=1 -timeout 60m ./... # slow machines; go does not know that the end-to-end tests build the programs

LOCKED ?= ./tests/e2e ./tests/cni ./tests/security ./tests/endure ./datapath/internal/ebpf

locks: setup ## tests with mutexes that record their order: fails if two are locked in opposite orders, even if nothing hung; LOCKED="./tests/cni -run TestMove" selects (root; downloads, 50 minutes)
	$(GO) run ./tools/locks -count=1 -timeout 60m -p 1 $(LOCKED)

matrix: setup ## connections between all pods (twenty on each of three nodes), nodes and an outside machine, over each kind of tunnel, and a pod that moves (root; changes the size of neighbour tables temporarily)
	LOXILIGHT_PODS=20 $(GO) test -count=1 -timeout 60m -v -run "TestMatrix|TestMove" ./tests/cni

routes: setup ## 100,000 changes of routes beside 1,000 connections, which stay on the fast path (root)
	LOXILIGHT_ROUTES=1 $(GO) test -count=1 -timeout 10m -v -run TestRoutesElsewhere ./datapath/internal/ebpf

policy-full: setup ## Policies for which the data plane has no room: only their subjects are isolated (root; some minutes)
	LOXILIGHT_POLICIES=1 $(GO) test ./tests/e2e -run 'TestPolicyDoesNotFit$$' -count=1 -timeout 20m -v

names: setup ## 10,000 times: a pod resolves a name and connects at once, while the daemon runs, is stopped and is killed (root)
	LOXILIGHT_NAMES=10000 $(GO) test ./tests/cni -run 'TestResolveAndConnect$$' -count=1 -timeout 20m -v

cut: setup ## changes of network policies under running connections, five times each: no forbidden packet passes, no other is lost (root)
	LOXILIGHT_CUTS=5 $(GO) test ./tests/cni -run 'TestCut$$' -count=1 -timeout 20m -v

hostile: setup ## a minute of hostile requests from a reader, against the limits in docs/security.md (root)
	LOXILIGHT_HOSTILE=1 $(GO) test -count=1 -timeout 10m -v -run TestS3HostileReader ./tests/security

test-unit: ## the tests that need neither root, network nor clang
	$(GO) test -short ./...

bench: build ## compare with kernel routing and nftables; BENCH="udp tcp" measures only these parts (root)
	.ci/setup bench
	$(GO) run ./tests/bench $(if $(BENCH),$(BENCH),-o docs/benchmarks.md)

KERNEL ?= 6.12

bench-stages: setup ## how long our programs take for each packet of a connection, into docs/benchmarks.md (root)
	LOXILIGHT_REPORT='$(CURDIR)/docs/benchmarks.md' LOXILIGHT_VERSION='$(VERSION)' $(GO) test ./datapath/internal/ebpf -run '^$$' -bench 'Stages|Policies' -benchtime 1x -count=1 -timeout 20m

bench-idle: setup ## how much processor time and memory the daemon uses while nothing happens, into docs/benchmarks.md (root; 3 minutes)
	LOXILIGHT_REPORT='$(CURDIR)/docs/benchmarks.md' LOXILIGHT_VERSION='$(VERSION)' $(GO) test ./tests/e2e -run '^$$' -bench Idle -benchtime 1x -count=1 -timeout 10m

bench-kernels: ## compare plain traffic with an nftables flowtable on an emulated Debian kernel, into docs/benchmarks-qemu.md; BENCH=routed shows only this part (root; downloads)
	.ci/setup bench
	.ci/setup kernels
	VERSION='$(VERSION)' tests/kernels/bench $(KERNEL) $(BENCH)

manifests: ## generate configs/kubernetes/*.yaml from the chart
	$(GO) test ./tools/chart -count=1 -run TestManifests -update

deb: ## the Debian package, built from source, in dist/ (root, Debian 12)
	.ci/setup package
	debian/build dist

check-deb: deb ## lintian, the debug package, and a second build that must be identical
	debian/check dist

KERNELS ?= 6.1 6.12

test-kernels: ## the data plane's tests on emulated Debian kernels: KERNELS="6.1 6.12" RUN=Restart select (root; downloads, takes long)
	.ci/setup kernels
	tests/kernels/run $(KERNELS)

test-verifier: ## load every program on an emulated Debian kernel 6.1, whose verifier accepts less than newer ones (root; downloads, two minutes)
	.ci/setup kernels
	RUN='^TestOldVerifiersAccept$$' TIMEOUT_S=900 tests/kernels/run 6.1

MACHINES ?= here

test-package: deb ## the package with a real systemd; MACHINES="here 6.1 6.12" RUN=TestUnderTraffic select, with emulated Debian kernels (root; downloads)
	.ci/setup machines
	tests/package/run $(MACHINES)

TEST_K8S = $(GO) test ./tests/k8s -count=1 -timeout 60m -v
# Tests that also run with a single address family. To save time, the others run with both only.
ONE_FAMILY := ^Test(Nodes|Pods|DNS|ClusterIP|APIServer|NodePort|External|LocalBalancer|HostPort|Hairpin)$$

k8s-programs: setup ## build the programs of the cluster of test-k8s, and keep them in the cache folder
	LOXILIGHT_K8S=build $(GO) test ./tests/k8s -count=1 -timeout 60m -v

test-k8s: setup ## a real Kubernetes cluster with loxilight as its only network, no kube-proxy: all tests with both address families, then some with each alone; RUN=TestClusterIP or FAMILY=ipv6 selects (root; builds Kubernetes the first time, and keeps it in the cache folder)
	LOXILIGHT_K8S=$(or $(FAMILY),1) $(TEST_K8S) $(if $(RUN),-run '$(RUN)')
ifeq ($(FAMILY)$(RUN),)
	LOXILIGHT_K8S=ipv4 $(TEST_K8S) -run '$(ONE_FAMILY)'
	LOXILIGHT_K8S=ipv6 $(TEST_K8S) -run '$(ONE_FAMILY)'
endif

scale-k8s: setup ## thousands of Services in a real API server: how fast the agent follows, compared with kube-proxy, into docs/benchmarks.md; SERVICES=5000 NODES=500 (root; builds Kubernetes the first time)
	LOXILIGHT_K8S_SCALE=1 LOXILIGHT_REPORT='$(CURDIR)/docs/benchmarks.md' LOXILIGHT_VERSION='$(VERSION)' $(GO) test ./tests/k8s/scale -count=1 -timeout 60m -v

PARITY_ROUNDS ?= 100

parity: setup ## compare the node with the kernel's bridge and router, for longer: PARITY_ROUNDS topologies for each test (root)
	$(GO) test ./tests/parity -count=1 -timeout 2h -v -rounds $(PARITY_ROUNDS) -frames 20000

PAUSING_FLOWS ?= 200000

pauses: setup ## flows that pause for about their idle time, for longer: PAUSING_FLOWS UDP flows for five minutes (root)
	$(GO) test ./tests/e2e -run 'TestPauses$$' -count=1 -timeout 20m -v -pauses.flows $(PAUSING_FLOWS) -pauses.time 5m

CONNECTIONS ?= 1000000

endure: setup ## ten minutes without the daemon at 10,000 new connections a second, ports that are reused at a full table, and five minutes of attack, for each address family; and 65,536 Services with a million backends (root; 45 minutes)
	LOXILIGHT_ENDURE=1 $(GO) test ./tests/endure -count=1 -timeout 60m -v

million: setup ## CONNECTIONS TCP connections through one Service, while the connection table grows and the daemon is killed and started again: none may be lost (root; 11 GB of memory, at most 20 minutes)
	LOXILIGHT_MILLION=$(CONNECTIONS) $(GO) test ./tests/million -count=1 -timeout 20m -v

POLICY_CASES ?= 1000000

policy: ## compare the tables of network policies with their definition, for longer: POLICY_CASES random verdicts
	$(GO) test ./datapath/policy -count=1 -timeout 1h -v -run TestTablesAgree -cases $(POLICY_CASES)

ADDS ?= 500

adds: setup ## add ADDS pods in each of four situations (normal; agent stopped; API server held; daemon killed): no packet that policies forbid may pass while they start (root; half an hour or more)
	LOXILIGHT_ADDS=$(ADDS) $(GO) test ./tests/adds -count=1 -timeout 2h -v

cyclonus: setup ## all cases of cyclonus for NetworkPolicies against real agents and daemons on three nodes; CASES='^ingress' selects by a regular expression (root; downloads cyclonus, ten minutes)
	cd tests/cyclonus && LOXILIGHT_CYCLONUS_RUN='$(CASES)' $(GO) test . -count=1 -timeout 1h -v

MODEL_CASES ?= 1000000
MODEL_BOUND ?= 30m

model: setup ## compare random configurations and packets with the model in tests/model, for longer: MODEL_CASES packets (root)
	$(GO) test ./tests/model -count=1 -timeout 2h -v -from 0 -cases $(MODEL_CASES) -bound $(MODEL_BOUND)

generate: ## compile ebpf-src/ into the Go packages that load it
	.ci/setup bpf
	$(GO) generate ./...

check-generated: generate ## fail if the committed files differ from those generated from ebpf-src/
	git diff --exit-code -- '*_bpfel*.go' '*_bpfel*.o'

GO_FILES = $$(git ls-files '*.go' | grep -v '_bpfel\(_test\)\?.go$$')
C_FILES = $$(git ls-files '*.c' '*.h')

fmt: ## format Go and C
	gofmt -w $(GO_FILES)
	clang-format-19 -i $(C_FILES)

lint: ## formatting, go vet, staticcheck, shellcheck
	.ci/setup bpf
	@test -z "$$(gofmt -l $(GO_FILES))" || { gofmt -d $(GO_FILES); exit 1; }
	clang-format-19 --dry-run -Werror $(C_FILES)
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	shellcheck -x .ci/run .ci/setup debian/build debian/check debian/check-copyright configs/kubernetes/clean-node.sh debian/loxilight.p* tests/kernels/run tests/kernels/bench tests/kernels/init tests/kernels/lib.sh tests/package/run tests/package/machine tests/package/rootfs tests/package/init internal/testk8s/node.sh

.PHONY: man completion install
# Manual pages have the date of the commit, so that builds are reproducible.
man: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
SHARE := $(DESTDIR)$(PREFIX)/share
CONFIG := $(DESTDIR)$(SYSCONFDIR)/loxilight

man: build ## the manual pages of llcli, in dist/man
	bin/llcli man dist/man/man1

completion: build ## completion scripts for bash, zsh and fish, in dist/completion
	@mkdir -p dist/completion
	for shell in bash zsh fish; do bin/llcli completion $$shell > dist/completion/llcli.$$shell || exit 1; done

install: man completion ## install the programs below PREFIX (/usr/local), and a configuration if none exists
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(SHARE)/man/man1 $(SHARE)/man/man5 $(SHARE)/man/man8
	install bin/llcli $(DESTDIR)$(PREFIX)/bin/
	if [ -e bin/loxilightd ]; then install bin/loxilightd $(DESTDIR)$(PREFIX)/sbin/; fi
	install -d $(CONFIG)/conf.d
	if [ ! -e $(CONFIG)/loxilightd.yaml ]; then install -m 644 configs/loxilightd.yaml $(CONFIG)/; fi
	install -m 644 dist/man/man1/llcli*.1 $(SHARE)/man/man1/
	install -m 644 docs/man/*.5 $(SHARE)/man/man5/
	install -m 644 docs/man/*.8 $(SHARE)/man/man8/
	install -D -m 644 dist/completion/llcli.bash $(SHARE)/bash-completion/completions/llcli
	install -D -m 644 dist/completion/llcli.zsh $(SHARE)/zsh/site-functions/_llcli
	install -D -m 644 dist/completion/llcli.fish $(SHARE)/fish/vendor_completions.d/llcli.fish
