// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestStateDirectoryFails makes the disk of the state directory fail under a daemon. Packets pass
// as before, changes are rejected, and health reports the reason, even if the daemon cannot start.
func TestStateDirectoryFails(t *testing.T) {
	s := newSite(t)
	if err := os.Mkdir(s.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	disk := testnet.NewDisk(t, s.StateDir())
	s.start()
	s.backends[0].ServeTCP(t, "10.0.1.2:9000", "b1")
	s.Apply(serviceYAML("web", []string{vip4 + ":80/tcp"}, []string{"10.0.1.2:9000"}) + `---
kind: Bridge
name: lan
spec: {device: br7, addresses: [10.88.0.1/24]}
`)
	passes := func(when string) {
		t.Helper()
		testnet.Eventually(t, patience, when+": the Service answers", func() bool {
			return try(s.client, "tcp4", vip4+":80", silence) == let
		})
	}
	passes("at first")
	disk.Fail()
	out, code, err := s.TryLLCLI("service", "add", "more", "--frontend", vip4+":81/tcp", "--backend", "10.0.1.2:9000")
	if code == 0 || !strings.Contains(err.Error()+out, "input/output error") {
		t.Errorf("a change: exit code %d: %s%v", code, out, err)
	}
	if out, code, _ := s.TryLLCLI("health"); code != 1 || !strings.Contains(out, "I/O errors") || !strings.Contains(out, s.StateDir()) {
		t.Errorf("health: exit code %d: %s", code, out)
	}
	s.node.Run(t, "ip", "link", "delete", "br7")
	testnet.Eventually(t, patience, "a deleted bridge is made again", func() bool {
		_, err := s.node.TryRun("ip", "link", "show", "br7")
		return err == nil
	})
	passes("with the disk gone")
	s.Kill()
	if code, err := s.Launch().Wait(20 * time.Second); err != nil || code != 1 {
		t.Errorf("a start: exit code %d, %v, want 1", code, err)
	}
	if out := s.Process().Output(); !strings.Contains(out, s.StateDir()) || !strings.Contains(out, "input/output error") {
		t.Errorf("a start says\n%s", out)
	}
	passes("without a daemon")
	disk.Repair()
	s.Start()
	s.ready()
	passes("with the disk again")
	s.LLCLI("service", "add", "more", "--frontend", vip4+":81/tcp", "--backend", "10.0.1.2:9000", "--wait", "10s")
	s.Stop()
}
