// SPDX-License-Identifier: Apache-2.0

package llcli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// unpack returns the files of an archive.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "loxilight/")] = string(text)
	}
}

// TestDoctorAndBundle: what is found and gathered of a daemon that runs, and of one
// that was killed.
func TestDoctorAndBundle(t *testing.T) {
	s := newSite(t)
	dir := filepath.Dir(filepath.Dir(s.Socket))
	config := "--config " + filepath.Join(dir, "loxilightd.yaml")
	const secret = "hunter2-Zx9"
	s.Apply("kind: Interface\nname: in0\nspec: {device: in0}\n---\nkind: Interface\nname: p1\nspec: {device: p1, role: port}\n---\n" +
		"kind: Service\nname: web\nlabels: {deploy-token: " + secret + "}\nspec: {frontends: [\"198.51.100.10:80/tcp\"], backends: [{address: \"10.0.1.2:8080\"}]}\n")
	s.expect("doctor "+config, "0 errors, 0 warnings", "runs since")
	s.expect("preflight "+config, "a start would go well")
	s.refuse(1, "detach "+config, "already running")

	s.node.Sysctl(t, "net.ipv4.ip_forward", "0")
	out, code, _ := s.TryLLCLI(strings.Fields("doctor " + config)...)
	if code != 1 || !strings.Contains(out, "net.ipv4.ip_forward\n  what is 0, and backends of Service web are on other hosts") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	s.node.Sysctl(t, "net.ipv4.ip_forward", "1")
	s.expect("bundle "+filepath.Join(dir, "runs.tar.gz")+" "+config, "runs.tar.gz: ")
	s.Kill()
	s.expect("doctor "+config+" -o json", `"daemon.stopped"`, `"sockets.stale"`)
	s.expect("doctor --fix "+config, "mended", "rm ")
	s.expect("bundle "+filepath.Join(dir, "killed.tar.gz")+" --anonymize "+config, "killed.tar.gz: ", "daemon/: ")

	runs, killed := unpack(t, filepath.Join(dir, "runs.tar.gz")), unpack(t, filepath.Join(dir, "killed.tar.gz"))
	for _, archive := range []map[string]string{runs, killed} {
		for name, text := range archive {
			if strings.Contains(text, secret) {
				t.Errorf("%s has the secret:\n%s", name, text)
			}
		}
		for _, name := range []string{"manifest.json", "doctor.json", "preflight.json", "network/link.txt", "config/loxilightd.yaml", "files.txt", "kernel/sysctl.txt"} {
			if archive[name] == "" {
				t.Errorf("%s is not there, or empty", name)
			}
		}
		if !strings.Contains(archive["doctor.json"], `"name": "web"`) { // by the daemon, or by its store
			t.Errorf("the Service is not in doctor.json:\n%s", archive["doctor.json"])
		}
	}
	if !strings.Contains(runs["daemon/services.json"], "198.51.100.10:80/tcp") || strings.Contains(killed["doctor.json"], "198.51.100.10") {
		t.Errorf("frontends: %s\n%s", runs["daemon/services.json"], killed["doctor.json"])
	}
	s.expect("detach "+config, "")
	if _, err := os.Stat(s.PinDir); err == nil {
		t.Error("the pins are there still")
	}
}

// TestDoctorIsRight plants what is in the way of packets: connections fail, doctor
// names the cause, and when that is gone they do not fail any more. The node does
// not know its neighbours yet, so that the first packets take the kernel's path.
func TestDoctorIsRight(t *testing.T) {
	const chain = "{ type filter hook forward priority 0; policy drop; }"
	for _, tt := range []struct {
		name, finding, word string
		plant, mend         []string
	}{
		{
			"rp_filter", "net.ipv4.conf.p1.rp_filter", "is strict",
			[]string{"sysctl", "-qw", "net.ipv4.conf.p1.rp_filter=1"}, []string{"sysctl", "-qw", "net.ipv4.conf.p1.rp_filter=2"},
		},
		{
			"ip_forward", "net.ipv4.ip_forward", "is 0",
			[]string{"sysctl", "-qw", "net.ipv4.ip_forward=0"}, []string{"sysctl", "-qw", "net.ipv4.ip_forward=1"},
		},
		{
			"firewall", "nftables chain inet guard onward", "drops what no rule",
			[]string{"nft", "add table inet guard; add chain inet guard onward " + chain}, []string{"nft", "delete table inet guard"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := exec.LookPath(tt.plant[0]); err != nil {
				t.Skipf("%s is not installed (.ci/setup test installs it)", tt.plant[0])
			}
			s := newSite(t)
			config := filepath.Join(filepath.Dir(filepath.Dir(s.Socket)), "loxilightd.yaml")
			s.server.ServeTCP(t, "10.0.1.2:8080", "server")
			s.Apply("kind: Interface\nname: in0\nspec: {device: in0}\n---\nkind: Interface\nname: p1\nspec: {device: p1, role: port}\n---\n" +
				"kind: Service\nname: web\nspec: {frontends: [\"198.51.100.10:80/tcp\"], backends: [{address: \"10.0.1.2:8080\"}]}\n")
			s.node.Route(t, "198.51.100.0/24", "192.0.2.17")
			s.client.Neighbour(t, "eth0", "192.0.2.1", s.node.MAC(t, "in0"))
			connect := func() error {
				s.node.Run(t, "ip", "neigh", "flush", "dev", "in0")
				_, err := s.client.TryRun("timeout", "2.5", "bash", "-c", "exec 3<>/dev/tcp/198.51.100.10/80")
				return err
			}
			s.node.Run(t, tt.plant[0], tt.plant[1:]...)
			if connect() == nil {
				t.Error("a connection came about with it planted")
			}
			out, _, _ := s.TryLLCLI("doctor", "--config", config)
			if !strings.Contains(out, tt.finding+"\n  what "+tt.word) {
				t.Errorf("doctor does not find it:\n%s", out)
			}
			s.node.Run(t, tt.mend[0], tt.mend[1:]...)
			s.LLCLI("connections", "flush", "--all")
			if err := connect(); err != nil {
				t.Errorf("no connection without it: %v", err)
			}
			if out, code, _ := s.TryLLCLI("doctor", "--config", config); code != 0 || strings.Contains(out, tt.finding) {
				t.Errorf("doctor finds it still:\n%s", out)
			}
		})
	}
}
