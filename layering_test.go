// SPDX-License-Identifier: Apache-2.0

package loxilight

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/loxilight/loxilight/"

// mayImport is the whole dependency policy: what each part may import of ours.
// Go's own internal/ rule protects the other packages. Packages for
// tests only (internal/test*) may be imported by any test.
var mayImport = map[string][]string{
	"api":               {},
	"api/client":        {"api"},
	"api/document":      {"api"},
	"api/report":        {"api"},
	"datapath":          {"datapath/policy"},
	"internal/dirwatch": {},
	"internal/listing":  {},
	"internal/memory":   {},
	"internal/tick":     {},

	"datapath/classify":                {"datapath"},
	"datapath/policy":                  {},
	"datapath/selection":               {"datapath"},
	"datapath/internal/bpfmap":         {},
	"datapath/internal/dump":           {},
	"datapath/internal/sockdiag":       {"datapath/internal/dump"},
	"datapath/internal/sysctl":         {},
	"datapath/internal/testmap":        {"datapath/internal/bpfmap"},
	"datapath/internal/ebpf":           {"internal/memory", "datapath", "datapath/internal/ebpf/announce", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/device", "datapath/internal/ebpf/fastpath", "datapath/internal/ebpf/guard", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/inspect", "datapath/internal/ebpf/keeper", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/lb", "datapath/internal/ebpf/mirror", "datapath/internal/ebpf/namespace", "datapath/internal/ebpf/nat", "datapath/internal/ebpf/nexthop", "datapath/internal/ebpf/observe", "datapath/internal/ebpf/overlay", "datapath/internal/ebpf/pin", "datapath/internal/ebpf/policies", "datapath/internal/ebpf/port", "datapath/internal/ebpf/rules", "datapath/internal/ebpf/snat", "datapath/internal/ebpf/telemetry", "datapath/internal/ebpf/watch", "datapath/policy"},
	"datapath/internal/ebpf/announce":  {"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/kernel", "datapath/internal/gratuitous"},
	"datapath/internal/ebpf/bridge":    {"datapath", "datapath/internal/bpfmap", "datapath/internal/dump", "datapath/internal/ebpf/guard", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/conn":      {"internal/tick", "datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/device":    {"datapath", "datapath/internal/dump", "datapath/internal/ebpf/bridge", "datapath/internal/ebpf/hook"},
	"datapath/internal/ebpf/fastpath":  {"datapath", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/kernel", "datapath/internal/netfilter"},
	"datapath/internal/ebpf/guard":     {"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/hook":      {"datapath", "datapath/internal/dump", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/pin", "datapath/internal/sysctl"},
	"datapath/internal/ebpf/inspect":   {"datapath", "datapath/internal/dump", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/pin", "datapath/internal/netfilter"},
	"datapath/internal/ebpf/kernel":    {"datapath", "datapath/internal/bpfmap"},
	"datapath/internal/ebpf/lb":        {"datapath", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/kernel", "datapath/selection"},
	"datapath/internal/ebpf/mirror":    {"datapath", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/overlay"},
	"datapath/internal/ebpf/nat":       {"datapath", "datapath/classify", "datapath/internal/bpfmap", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/nexthop":   {"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/overlay"},
	"datapath/internal/ebpf/overlay":   {"datapath", "datapath/internal/bpfmap", "datapath/internal/dump", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/pin":       {"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/route":     {"datapath", "datapath/internal/dump", "datapath/internal/ebpf/hook"},
	"datapath/internal/ebpf/rules":     {"datapath", "datapath/classify", "datapath/internal/bpfmap", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/snat":      {"datapath", "datapath/internal/ebpf/kernel", "datapath/internal/sockdiag"},
	"datapath/internal/ebpf/watch":     {"datapath", "datapath/internal/dump", "datapath/internal/ebpf/announce", "datapath/internal/ebpf/bridge", "datapath/internal/ebpf/device", "datapath/internal/ebpf/guard", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/kernel"},
	"datapath/internal/ebpf/namespace": {"datapath", "datapath/internal/ebpf/fastpath", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/overlay", "datapath/internal/ebpf/pin", "datapath/internal/ebpf/watch"},
	"datapath/internal/ebpf/keeper":    {"internal/dirwatch", "internal/listing", "internal/tick", "datapath", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/pin"},
	"datapath/internal/ebpf/policies":  {"datapath", "datapath/classify", "datapath/internal/ebpf/kernel", "datapath/policy"},
	"datapath/internal/ebpf/port":      {"datapath", "datapath/internal/ebpf/guard", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/keeper", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/namespace", "datapath/internal/ebpf/overlay", "datapath/internal/ebpf/pin"},
	"datapath/internal/ebpf/observe":   {"datapath", "datapath/internal/ebpf/device", "datapath/internal/ebpf/hook", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/namespace", "datapath/internal/ebpf/pin", "datapath/internal/ebpf/port", "datapath/internal/ebpf/route"},
	"datapath/internal/testtables":     {"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/pin", "datapath/internal/testmap"},
	"datapath/internal/fake":           {"datapath", "datapath/policy"},
	"datapath/internal/gratuitous":     {},
	"datapath/internal/pod":            {"datapath", "datapath/internal/dump", "datapath/internal/gratuitous", "datapath/internal/network", "datapath/internal/sockdiag"},
	"datapath/backends":                {"datapath", "datapath/internal/ebpf", "datapath/internal/fake", "datapath/internal/network", "datapath/internal/pod"},
	"datapath/internal/netfilter":      {"internal/tick", "datapath/internal/dump"},
	"datapath/internal/ebpf/telemetry": {
		"datapath", "datapath/internal/bpfmap", "datapath/internal/ebpf/conn", "datapath/internal/ebpf/kernel", "datapath/internal/ebpf/lb", "datapath/internal/ebpf/nat", "datapath/internal/ebpf/rules", "datapath/policy"},

	"datapath/internal/network":           {"internal/tick", "datapath", "datapath/internal/dump", "datapath/internal/network/namespace", "datapath/internal/network/route", "datapath/internal/sysctl"},
	"datapath/internal/network/namespace": {"datapath", "datapath/internal/dump"},
	"datapath/internal/network/route":     {"datapath", "datapath/internal/dump", "datapath/internal/network/namespace"},

	"loxilightd/internal/channel": {"api"},
	"loxilightd/internal/config":  {"internal/memory", "datapath", "datapath/policy"},
	"loxilightd/internal/control": {
		"api", "api/document", "datapath", "datapath/policy", "loxilightd/internal/control/capacity", "loxilightd/internal/control/decode", "loxilightd/internal/control/gate", "loxilightd/internal/control/object", "loxilightd/internal/control/packetlog", "loxilightd/internal/control/policyreply",
		"loxilightd/internal/ipam", "loxilightd/internal/state", "internal/memory",
	},
	"loxilightd/internal/control/capacity":    {"api", "datapath"},
	"loxilightd/internal/control/decode":      {"api"},
	"loxilightd/internal/control/gate":        {},
	"loxilightd/internal/control/packetlog":   {"datapath"},
	"loxilightd/internal/control/policyreply": {"api", "datapath", "datapath/policy", "loxilightd/internal/state"},
	"loxilightd/internal/control/object":      {"api", "datapath", "datapath/policy", "loxilightd/internal/control/decode", "loxilightd/internal/state"},
	"loxilightd/internal/doctor": {
		"internal/listing", "api", "api/client", "datapath", "datapath/policy", "loxilightd/internal/config", "loxilightd/internal/control", "loxilightd/internal/state",
	},
	"loxilightd/internal/health": {"datapath"},
	"loxilightd/internal/ipam":   {},
	"loxilightd/internal/node": {
		"internal/listing", "internal/tick", "datapath", "datapath/policy", "loxilightd/internal/health", "loxilightd/internal/ipam", "loxilightd/internal/node/condition", "loxilightd/internal/node/policies",
		"loxilightd/internal/reconcile", "loxilightd/internal/state",
	},
	"loxilightd/internal/node/policies": {"datapath", "datapath/policy", "loxilightd/internal/state"},
	"loxilightd/internal/node/condition": {"datapath/policy",
		"internal/listing", "internal/tick", "datapath", "loxilightd/internal/health", "loxilightd/internal/node/policies", "loxilightd/internal/reconcile", "loxilightd/internal/state",
	},
	"loxilightd/internal/pods":      {"internal/dirwatch", "internal/listing", "internal/tick", "api", "datapath", "loxilightd/internal/ipam"},
	"loxilightd/internal/reconcile": {"internal/tick", "datapath"},
	"loxilightd/internal/state":     {"internal/listing", "api", "datapath", "datapath/policy", "loxilightd/internal/state/disk", "loxilightd/internal/state/timeline", "loxilightd/internal/state/record"},

	"loxilightd/internal/state/disk":     {"loxilightd/internal/state/record"},
	"loxilightd/internal/state/timeline": {"loxilightd/internal/state/record"},
	"loxilightd/internal/state/record":   {},

	"loxilightd": {
		"api", "api/report", "datapath", "datapath/backends",
		"loxilightd/internal/channel", "loxilightd/internal/config", "loxilightd/internal/control", "loxilightd/internal/doctor",
		"loxilightd/internal/health", "loxilightd/internal/ipam", "loxilightd/internal/node", "loxilightd/internal/pods", "loxilightd/internal/reconcile", "loxilightd/internal/state",
	},
	"loxilight-agent": {
		"api", "api/client", "loxilight-agent/internal/agent", "loxilight-agent/internal/config", "loxilight-agent/internal/controller",
		"loxilight-agent/internal/kube",
	},
	"loxilight-agent/internal/controller": {
		"loxilight-agent/internal/config", "loxilight-agent/internal/health", "loxilight-agent/internal/kube", "loxilight-agent/internal/policies",
		"loxilight-agent/internal/pools", "loxilight-agent/internal/services",
	},
	"loxilight-agent/internal/agent": {
		"api", "api/client", "loxilight-agent/internal/config", "loxilight-agent/internal/health", "loxilight-agent/internal/syncer", "loxilight-agent/internal/kube",
		"loxilight-agent/internal/metrics", "loxilight-agent/internal/nodes", "loxilight-agent/internal/policies", "loxilight-agent/internal/pools", "loxilight-agent/internal/servicehealth", "loxilight-agent/internal/services",
	},
	"loxilight-agent/internal/health":        {},
	"loxilight-agent/internal/pools":         {"loxilight-agent/internal/config"},
	"loxilight-agent/internal/metrics":       {},
	"loxilight-agent/internal/config":        {"api"},
	"loxilight-agent/internal/syncer":        {"api", "api/client"},
	"loxilight-agent/internal/nodes":         {"api", "loxilight-agent/internal/config"},
	"loxilight-agent/internal/policies":      {"api"},
	"loxilight-agent/internal/kube":          {},
	"loxilight-agent/internal/services":      {"api"},
	"loxilight-agent/internal/servicehealth": {"loxilight-agent/internal/health", "loxilight-agent/internal/services"},

	"loxilight-cni":         {"api", "api/client"},
	"llcli":                 {"api", "api/client", "llcli/internal/cli", "llcli/internal/command"},
	"llcli/internal/bundle": {"api"},
	"llcli/internal/cli": {
		"api", "api/client", "api/document", "llcli/internal/changes", "llcli/internal/command", "llcli/internal/kinds", "llcli/internal/local",
		"llcli/internal/output", "llcli/internal/view",
	},
	"llcli/internal/command": {"api", "api/client", "llcli/internal/output"},
	"llcli/internal/kinds":   {"api", "api/document", "llcli/internal/command", "llcli/internal/output"},
	"llcli/internal/view":    {".", "api", "api/client", "llcli/internal/command", "llcli/internal/kinds", "llcli/internal/output"},
	"llcli/internal/changes": {"api", "api/document", "llcli/internal/command", "llcli/internal/kinds", "llcli/internal/output"},
	"llcli/internal/local":   {"api", "api/client", "api/report", "llcli/internal/bundle", "llcli/internal/command", "llcli/internal/kinds", "llcli/internal/output"},
	"llcli/internal/output":  {"api", "api/document"},

	"tools/chart":          {},
	"tools/image":          {},
	"tools/locks":          {},
	"tools/image/make":     {"tools/image"},
	"internal/testdaemon":  {"api", "api/client", "internal/testnet"},
	"internal/testcluster": {"internal/testdaemon", "internal/testkube", "internal/testnet"},
	"internal/testkube":    {},
	"internal/testk8s":     {"tools/image", "internal/testnet"},
	"internal/testnet":     {},
	"internal/testpolicy":  {"datapath/policy"},
	"internal/testrules":   {"datapath", "datapath/classify"},
	"internal/testpkt":     {},
	"internal/testreport":  {},
	"internal/testtraffic": {"internal/testnet"},
	"tests/demo":           {"api", "internal/testdaemon", "internal/testnet"},
	"tests/k8s/scale":      {},
	"tests/k8s/agnhost":    {},
	"tests/million":        {},
	"tests/endure":         {},
	"tests/k8s":            {},
	"tests/adds":           {},
	"tests/cni":            {},
	"tests/e2e":            {},
	"tests/security":       {},
	"tests/parity":         {},
	"tests/model":          {},
	"tests/package":        {},
	"tests/llcli":          {},
	"tests/bench":          {"api", "api/client", "internal/testnet", "internal/testpkt", "internal/testreport"},
}

func TestLayering(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		rel := strings.TrimPrefix(pkg, module)
		if rel == strings.TrimSuffix(module, "/") {
			continue
		}
		seen++
		allowed, known := mayImport[rel]
		if !known {
			t.Errorf("%s: add it to mayImport", rel)
		}
		for imp := range strings.FieldsSeq(imports) {
			dep, ours := strings.CutPrefix(imp+"/", module)
			dep = path.Clean(dep) // the package at the top: "."
			if ours && !slices.Contains(allowed, dep) {
				t.Errorf("%s must not import %s", rel, dep)
			}
		}
	}
	if seen == 0 {
		t.Error("go list named no package of ours")
	}
}

// The size that no package of ours may exceed, without tests and generated files.
const (
	maxFiles = 25
	maxLines = 4500
)

// oversized are the packages that still exceed it. No package may be added.
var oversized = []string{
	"tests/bench",
}

func TestPackageSize(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{.Dir}} {{join .GoFiles " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg, dir := strings.TrimPrefix(fields[0], module), fields[1]
		files, lines := 0, 0
		for _, name := range fields[2:] {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(text, []byte("// Code generated ")) {
				files++
				lines += bytes.Count(text, []byte("\n"))
			}
		}
		exceeds, listed := files > maxFiles || lines > maxLines, slices.Contains(oversized, pkg)
		switch {
		case exceeds && !listed:
			t.Errorf("%s has %d files and %d lines, more than %d or %d: split it", pkg, files, lines, maxFiles, maxLines)
		case listed && !exceeds:
			t.Errorf("%s has %d files and %d lines: take it out of oversized", pkg, files, lines)
		}
	}
}
