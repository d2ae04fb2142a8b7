// SPDX-License-Identifier: Apache-2.0

// Package testk8s brings up a real Kubernetes cluster on this machine: etcd, API server, controller
// manager, scheduler, and nodes in their own namespaces (network, mount, UTS, PID), each with
// containerd and a kubelet. Nothing is pulled: programs are built from Go modules, and images are
// made here. Nothing leaves the namespaces, and nothing is left behind when the cluster ends. The
// package does not depend on loxilight.
package testk8s

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The versions to build. Each version has its own directory.
const (
	kubernetesVersion = "v1.36.3"
	coreDNSVersion    = "v1.14.3"
)

// Programs are the programs of a cluster.
type Programs struct {
	Dir     string // directory that contains all of them
	CoreDNS string // its manifest from Kubernetes
}

type program struct{ name, path string }

// packages are the sources of the programs.
var packages = []program{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	{"agnhost", "k8s.io/kubernetes/test/images/agnhost"},
}

// KubeProxy is an extra program that Build does not build by default: a cluster has no kube-proxy.
const KubeProxy = "kube-proxy"

// Build builds missing programs into the user's cache directory, and reports progress to log. The
// first build takes about ten minutes on two processors.
func Build(log io.Writer, more ...string) (*Programs, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "loxilight", "k8s")
	b := builder{dir: dir, log: log}
	p := &Programs{Dir: filepath.Join(dir, "bin-"+kubernetesVersion), CoreDNS: filepath.Join(dir, "bin-"+kubernetesVersion, "coredns.yaml")}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, err
	}
	var missing []program
	all := slices.Clone(packages)
	for _, name := range more {
		all = append(all, program{name, "k8s.io/kubernetes/cmd/" + name})
	}
	for _, program := range all {
		if _, err := os.Stat(filepath.Join(p.Dir, program.name)); err != nil {
			missing = append(missing, program)
		}
	}
	if _, err := os.Stat(p.CoreDNS); err != nil || len(missing) > 0 {
		m, err := b.module("kubernetes", "k8s.io/kubernetes", kubernetesVersion)
		if err != nil {
			return nil, err
		}
		for _, program := range missing {
			if err := b.build(m.work, filepath.Join(p.Dir, program.name), program.path, stamps()); err != nil {
				return nil, err
			}
		}
		manifest, err := os.ReadFile(filepath.Join(m.Dir, "cluster/addons/dns/coredns/coredns.yaml.base"))
		if err == nil {
			err = os.WriteFile(p.CoreDNS, manifest, 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(filepath.Join(p.Dir, "coredns")); err != nil {
		m, err := b.module("coredns", "github.com/coredns/coredns", coreDNSVersion)
		if err == nil {
			err = os.WriteFile(filepath.Join(m.work, "main.go"), []byte(corednsMain()), 0o644)
		}
		if err == nil {
			err = b.build(m.work, filepath.Join(p.Dir, "coredns"), ".", "")
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// builder builds third-party modules, each with the versions in its own go.mod.
type builder struct {
	dir string
	log io.Writer
}

// fetched is a module that has been fetched and can be built in the directory that work names.
type fetched struct {
	Dir, GoMod string
	work       string
}

func (b *builder) module(name, path, version string) (*fetched, error) {
	m := &fetched{work: filepath.Join(b.dir, "build-"+name)}
	if err := os.MkdirAll(m.work, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(m.work, "go.mod"), []byte("module test.invalid/"+name+"\n"), 0o644); err != nil {
		return nil, err
	}
	out, err := b.run(m.work, "go", "mod", "download", "-json", path+"@"+version)
	if err == nil {
		err = json.Unmarshal(out, m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", path, version, err)
	}
	theirs, err := os.ReadFile(m.GoMod)
	if err != nil {
		return nil, err
	}
	ours := goMod("test.invalid/"+name, path, version, string(theirs))
	return m, os.WriteFile(filepath.Join(m.work, "go.mod"), []byte(ours), 0o644)
}

var (
	aboutGo  = regexp.MustCompile(`(?m)^(go|godebug) .*$`)
	required = regexp.MustCompile(`(?m)^(?:require)?\s+([^\s()]+ v[^\s]+)(?: // indirect)?$`)
	staged   = regexp.MustCompile(`(?m)^\s*(?:replace )?(\S+) => \./staging/`)
)

// goMod returns a go.mod that requires a module, and every other module at the version that the
// module itself names, so that all versions are fixed. Modules in Kubernetes' own repository are
// also published separately.
func goMod(name, path, version, theirs string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "module %s\n\n%s\n\n", name, strings.Join(aboutGo.FindAllString(theirs, -1), "\n"))
	fmt.Fprintf(&b, "require %s %s\n", path, version)
	for _, m := range required.FindAllStringSubmatch(theirs, -1) {
		fmt.Fprintf(&b, "require %s\n", m[1])
	}
	for _, m := range staged.FindAllStringSubmatch(theirs, -1) {
		fmt.Fprintf(&b, "replace %s => %s v0.%s\n", m[1], m[1], strings.TrimPrefix(version, "v1."))
	}
	return b.String()
}

func (b *builder) build(dir, out, pkg, stamps string) error {
	begin := time.Now()
	fmt.Fprintf(b.log, "building %s\n", filepath.Base(out))
	if _, err := b.run(dir, "go", "build", "-mod=mod", "-buildvcs=false", "-trimpath", "-gcflags", "all=-dwarf=false", "-ldflags", "-s -w "+stamps, "-o", out+".new", pkg); err != nil {
		return err
	}
	fmt.Fprintf(b.log, "built %s in %s\n", filepath.Base(out), time.Since(begin).Round(time.Second))
	return os.Rename(out+".new", out)
}

func (b *builder) run(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return out, nil
}

// stamps returns linker flags that set the versions which the programs report to each other, and
// without which they do not work.
func stamps() string {
	minor := strings.Split(kubernetesVersion, ".")[1]
	text := ""
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		text += fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=archive ", pkg, kubernetesVersion, minor)
	}
	return text
}

// corednsPlugins are the plugins in Kubernetes' manifest, in CoreDNS's order; a program with all
// plugins takes three times as long to build.
var corednsPlugins = []string{"reload", "ready", "health", "prometheus:metrics", "errors", "cache", "loadbalance", "kubernetes"}

func corednsMain() string {
	var imports, names strings.Builder
	for _, p := range corednsPlugins {
		name, folder, other := strings.Cut(p, ":")
		if !other {
			folder = name
		}
		fmt.Fprintf(&imports, "\t_ \"github.com/coredns/coredns/plugin/%s\"\n", folder)
		fmt.Fprintf(&names, "%q, ", name)
	}
	return fmt.Sprintf(`package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
%s)

func main() {
	dnsserver.Directives = []string{%s}
	coremain.Run()
}
`, imports.String(), names.String())
}
