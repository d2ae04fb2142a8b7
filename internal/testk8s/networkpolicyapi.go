// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/tools/image"
)

// networkPolicyAPIVersion is the version of sigs.k8s.io/network-policy-api.
const networkPolicyAPIVersion = "v0.2.0"

// ConformanceImage is the image of the pods of the conformance suite, as its manifests name it.
const ConformanceImage = "registry.k8s.io/e2e-test-images/agnhost:2.45"

// NetworkPolicyAPI fetches the project that defines ClusterNetworkPolicies, and returns the definition
// of the resource, with its experimental fields.
func (p *Programs) NetworkPolicyAPI() (definition string, err error) {
	m, err := p.builder(io.Discard).module("network-policy-api", "sigs.k8s.io/network-policy-api", networkPolicyAPIVersion)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	return string(text), err
}

// Conformance builds the program of the conformance suite of ClusterNetworkPolicies, unless it exists.
func (p *Programs) Conformance(log io.Writer) (program string, err error) {
	program = filepath.Join(p.Dir, "network-policy-conformance-"+networkPolicyAPIVersion)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	b := p.builder(log)
	m, err := b.module("network-policy-api", "sigs.k8s.io/network-policy-api", networkPolicyAPIVersion)
	if err != nil {
		return "", err
	}
	begin := time.Now()
	fmt.Fprintln(log, "building the conformance suite")
	if _, err := b.run(m.work, "go", "test", "-c", "-mod=mod", "-trimpath", "-gcflags", "all=-dwarf=false", "-ldflags", "-s -w", "-o", program+".new", "sigs.k8s.io/network-policy-api/conformance"); err != nil {
		return "", err
	}
	fmt.Fprintf(log, "built the conformance suite in %s\n", time.Since(begin).Round(time.Second))
	return program, os.Rename(program+".new", program)
}

func (p *Programs) builder(log io.Writer) *builder {
	return &builder{dir: filepath.Dir(p.Dir), log: log}
}

// NetworkPolicyAPI returns the definition of ClusterNetworkPolicies.
func (c *Cluster) NetworkPolicyAPI() (definition string, err error) { return c.p.NetworkPolicyAPI() }

// LoadAgnhost gives all nodes agnhost, behind a program that speaks SCTP without the kernel's sockets,
// as the image with a tag: of the pods of the suites that come with Kubernetes.
func (c *Cluster) LoadAgnhost(t testnet.T, wrapper, tag string) {
	t.Helper()
	base, err := baseFiles()
	if err != nil {
		t.Fatalf("%v", err)
	}
	i := image.Image{
		Tags: []string{tag}, Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}, Time: time.Unix(0, 0),
		Files: append(
			base,
			image.File{Path: "bin/bash", Mode: 0o755, Text: "#!/bin/sh\nexec /bin/sh \"$@\"\n"},
			image.File{Path: "agnhost", Mode: 0o755, Source: wrapper},
			image.File{Path: "agnhost-upstream", Mode: 0o755, Source: filepath.Join(c.p.Dir, "agnhost")},
		),
	}
	file := filepath.Join(c.dir, "agnhost.tar")
	if err := i.WriteFile(file, runtime.GOARCH); err != nil {
		t.Fatalf("%v", err)
	}
	for _, n := range c.Nodes {
		n.MustRun(t, "ctr", "-n", "k8s.io", "images", "import", file)
	}
}

// Conformance builds the program of the conformance suite.
func (c *Cluster) Conformance(log io.Writer) (program string, err error) {
	return c.p.Conformance(log)
}
