// SPDX-License-Identifier: Apache-2.0

package llcli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
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

// TestDoctorAndBundle: the findings and the archive for a running daemon, and for a killed one.
func TestDoctorAndBundle(t *testing.T) {
	s := newSite(t)
	dir := filepath.Dir(filepath.Dir(s.Socket))
	config := "--config " + filepath.Join(dir, "loxilightd.yaml")
	const secret = "hunter2-Zx9"
	s.Apply("kind: Interface\nname: in0\nspec: {device: in0}\n---\nkind: Interface\nname: p1\nspec: {device: p1, role: port}\n---\n" +
		"kind: Service\nname: web\nlabels: {deploy-token: " + secret + "}\nspec: {frontends: [\"198.51.100.10:80/tcp\"], backends: [{address: \"10.0.1.2:8080\"}]}\n")
	testnet.Eventually(t, time.Minute, "the doctor finds no fault", func() bool { // a busy machine delays answers
		out, _, _ := s.TryLLCLI(strings.Fields("doctor " + config)...)
		return strings.Contains(out, "0 errors, 0 warnings") && strings.Contains(out, "runs since")
	})
	s.expect("preflight "+config, "a start would succeed")
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
	s.expect("doctor --fix "+config, "repaired", "rm ")
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
