// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// mode runs loxilightd with args until it ends.
func (s *site) mode(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, err bytes.Buffer
	args = append([]string{"--config", s.path("loxilightd.yaml")}, args...)
	code = run(s.t.Context(), args, nil, &out, &err)
	return code, out.String(), err.String()
}

// TestPreflightBesideADaemon: preflight reports the expected result of a start and does not change
// the daemon, its pins or its directories.
func TestPreflightBesideADaemon(t *testing.T) {
	t.Run("without pins", func(t *testing.T) {
		t.Parallel()
		s, pins := newKernelSite(t)
		code, out, _ := s.mode("--preflight")
		if code != 0 || !strings.Contains(out, "no pins exist") {
			t.Errorf("exit code %d:\n%s", code, out)
		}
		for _, dir := range []string{pins, s.path("run"), s.path("state")} {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s was made", dir)
			}
		}
	})
	t.Run("with a daemon", func(t *testing.T) {
		t.Parallel()
		s, _ := newKernelSite(t)
		s.run()
		code, out, _ := s.mode("--preflight", "--json")
		var r datapath.Preflight
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		if code != 0 || !r.OK || len(r.Programs) != 20 || r.Pins.Action != datapath.PinsAdopt || r.Kernel == "" {
			t.Errorf("exit code %d, report %+v", code, r)
		}
		for _, p := range r.Programs {
			if !p.OK || p.Instructions < 500 || p.Processed < 1000 || p.StackBytes < 8 {
				t.Errorf("program %+v", p)
			}
		}
		s.status() // the daemon still answers
	})
}

// pinForeign pins a map in a directory, as a different version of loxilight would.
func pinForeign(t *testing.T, folder, name string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(folder, name)); err != nil {
		t.Fatal(err)
	}
}

// TestPinsOfAnotherVersion: the daemon and --preflight reject such pins and leave them unchanged;
// --detach removes them.
func TestPinsOfAnotherVersion(t *testing.T) {
	for name, tt := range map[string]struct{ folder, pin, want string }{
		"another meaning": {"layout-4711", "ll_ct4", "layout 4711"},
		"another map":     {"layout-1", "ll_ct4", "ll_ct4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pins := newKernelSite(t)
			pinForeign(t, filepath.Join(pins, tt.folder), tt.pin)
			before := listing(t, pins)
			p := s.start()
			if code := p.ends(); code != exitRefused {
				t.Errorf("exit code %d, want %d", code, exitRefused)
			}
			p.wantLog(tt.want, "llcli detach", "install")
			code, out, _ := s.mode("--preflight", "--json")
			if code != exitFailed || !strings.Contains(out, `"id": "pins.refused"`) {
				t.Errorf("exit code %d of --preflight --json:\n%s", code, out)
			}
			var r preflightReport // --preflight without --json prints its text
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			if text := r.text(); !strings.Contains(text, tt.want) || !strings.Contains(text, "would FAIL") {
				t.Errorf("--preflight prints:\n%s", text)
			}
			if after := listing(t, pins); after != before {
				t.Errorf("pins before:\n%safter:\n%s", before, after)
			}
			if code, _, log := s.mode("--detach"); code != 0 {
				t.Errorf("exit code %d of --detach:\n%s", code, log)
			}
			if _, err := os.Stat(pins); err == nil {
				t.Errorf("left: %s", listing(t, pins))
			}
			s.run().stop()
		})
	}
}

// listing returns all paths below dir.
func listing(t *testing.T, dir string) (list string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		list += path + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestDetachWantsTheDaemonStopped(t *testing.T) {
	s, pins := newKernelSite(t)
	s.ns = testnet.New(t, "node")
	peer := testnet.New(t, "peer")
	testnet.Veth(t, testnet.Port{NS: s.ns, Name: "in0"}, testnet.Port{NS: peer, Name: "out0"})
	p := s.run()
	s.apply(api.Object{Kind: api.KindInterface, Name: "in0", Spec: []byte(`{"device":"in0"}`)})
	if code, _, log := s.mode("--detach"); code != exitFailed || !strings.Contains(log, "stop it first") {
		t.Errorf("exit code %d beside a daemon:\n%s", code, log)
	}
	p.stop()
	for range 2 { // the second time, nothing is left
		if code, _, log := s.mode("--detach"); code != 0 {
			t.Errorf("exit code %d:\n%s", code, log)
		}
		if _, err := os.Stat(pins); err == nil {
			t.Errorf("left: %s", listing(t, pins))
		}
	}
	// The desired state is stored, so the next start attaches the programs again.
	s.run()
	eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(pins, "layout-1", "ports", "0", "in0"))
		return err == nil
	})
}

func TestModesThatMakeNoSense(t *testing.T) {
	s := newSite(t)
	for _, args := range [][]string{{"--json"}, {"--preflight", "--detach"}, {"--detach", "--json"}, {"--preflight", "now"}} {
		if code, out, log := s.mode(args...); code != exitUsage || out != "" || log == "" {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, log)
		}
	}
}
