// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// NetpolImage is the image of the pods in Kubernetes' tests of NetworkPolicies, of kubernetesVersion.
const NetpolImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"

// netpolSource is a program with these tests alone, which takes far less time to build than all of
// Kubernetes' end-to-end tests. They ask for the family of the cluster's first Service addresses.
const netpolSource = `package netpol

import (
	"flag"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/network/netpol"
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.IPFamily = os.Getenv("IP_FAMILY")
	os.Exit(m.Run())
}

func TestNetpol(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "network policies", suite, reporter)
}
`

// Netpol builds the program of Kubernetes' tests of NetworkPolicies, unless it exists.
func (p *Programs) Netpol(log io.Writer) (program string, err error) {
	program = filepath.Join(p.Dir, "netpol")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	b := p.builder(log)
	m, err := b.module("kubernetes", "k8s.io/kubernetes", kubernetesVersion)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(m.work, "netpol")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "netpol_test.go"), []byte(netpolSource), 0o644); err != nil {
		return "", err
	}
	begin := time.Now()
	fmt.Fprintln(log, "building Kubernetes' tests of NetworkPolicies")
	if _, err := b.run(m.work, "go", "test", "-c", "-mod=mod", "-trimpath", "-gcflags", "all=-dwarf=false", "-ldflags", "-s -w "+stamps(), "-o", program+".new", "./netpol"); err != nil {
		return "", err
	}
	fmt.Fprintf(log, "built Kubernetes' tests of NetworkPolicies in %s\n", time.Since(begin).Round(time.Second))
	return program, os.Rename(program+".new", program)
}

// Netpol builds the program of Kubernetes' tests of NetworkPolicies.
func (c *Cluster) Netpol(log io.Writer) (program string, err error) { return c.p.Netpol(log) }
