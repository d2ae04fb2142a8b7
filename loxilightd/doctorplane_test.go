// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/control"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// patient is an instance with the eBPF data plane on its own node, between clients and backends.
//
//	clients ── eth0 192.0.2.1 [node] eth1 10.0.1.1 ── backends 10.0.1.0/24
type patient struct {
	*site
	pins, ports string
	far         *testnet.NS
	daemon      *process
	attach      string // how programs are attached
	killed      bool   // the daemon does not run
	proven      bool   // the doctor has found since then that the programs load
}

func newPatient(t *testing.T, attach string) *patient {
	t.Helper()
	s, pins := newKernelSite(t)
	s.ns = testnet.New(t, "node")
	p := &patient{site: s, pins: pins, ports: filepath.Join(pins, "layout-1/ports/0"), attach: attach, far: testnet.New(t, "far")}
	testnet.Veth(t, testnet.Port{NS: s.ns, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: p.far, Name: "far0", Addrs: []string{"192.0.2.2/24"}})
	testnet.Veth(t, testnet.Port{NS: s.ns, Name: "eth1", Addrs: []string{"10.0.1.1/24"}}, testnet.Port{NS: p.far, Name: "far1", Addrs: []string{"10.0.1.2/24"}})
	s.ns.Route(t, "default", "192.0.2.2")
	s.ns.Forward(t)
	s.configure("pinDir: "+pins, "switch: {namespace: host}", "datapath: {attach: "+attach+"}",
		"tables: {connections: 1024, affinity: 1024, backends: 65536}")
	p.daemon = s.run()
	s.apply(interfaceObject("eth0"), interfaceObject("eth1"), serviceObject("web", 1, "10.0.1.2:8080"))
	return p
}

func interfaceObject(device string) api.Object {
	return api.Object{Kind: api.KindInterface, Name: device, Spec: fmt.Appendf(nil, `{"device":%q}`, device)}
}

// kill kills the daemon; its data plane continues.
func (p *patient) kill() {
	p.t.Helper()
	p.daemon.signal(syscall.SIGKILL)
	p.daemon.ends()
	p.killed, p.proven = true, false
}

// start starts the daemon again.
func (p *patient) start() {
	p.t.Helper()
	p.daemon = p.run()
	p.killed = false
}

// doctor runs the doctor as [site.doctor] does. Without a daemon, the doctor loads all programs,
// which takes seconds: only the first time after the daemon has been killed.
func (p *patient) doctor(more ...string) (found map[string]api.Finding, code int) {
	p.t.Helper()
	var env []string
	if p.proven {
		env = append(env, provenHooks+"="+p.attach)
	}
	found, code = p.doctorWith(env, more...)
	for key, f := range found {
		if f.ID == "kernel.refuses" || f.ID == "kernel.hooks" {
			p.t.Errorf("found %s: %s", key, f.What)
		}
	}
	p.proven = p.killed
	return found, code
}

func (p *patient) remove(paths ...string) {
	p.t.Helper()
	testnet.RemovePins(p.t, paths...)
}

// finds checks that the doctor reports a finding and that --fix repairs it; if did is empty, the
// finding must not be fixable. It returns all findings after that.
func (p *patient) finds(severity, key, word, did string) (found map[string]api.Finding) {
	p.t.Helper()
	if did == "" {
		found, _ = p.doctor("--fix")
		wantFinding(p.t, found, key, word)
		if f := found[key]; f.Severity != severity || f.Fixable || f.Fixed != "" {
			p.t.Errorf("%s is %s, fixable %t, fixed %q", key, f.Severity, f.Fixable, f.Fixed)
		}
		return found
	}
	found, _ = p.doctor()
	wantFinding(p.t, found, key, word)
	if f := found[key]; f.Severity != severity || !f.Fixable {
		p.t.Errorf("%s is %s, fixable %t", key, f.Severity, f.Fixable)
	}
	found, _ = p.doctor("--fix")
	if f := found[key]; !strings.HasPrefix(f.Fixed, did) || f.FixError != "" {
		p.t.Errorf("%s: --fix did %q, %q; want %q", key, f.Fixed, f.FixError, did)
	}
	if found, _ = p.doctor(); found[key].ID != "" {
		p.t.Errorf("%s is found after --fix", key)
	}
	return found
}

// pin returns the path of a pin.
func (p *patient) pin(name string) string { return filepath.Join(p.pins, name) }

// TestDoctorOfAHealthyNode: the doctor finds nothing except properties of the test machine.
func TestDoctorOfAHealthyNode(t *testing.T) {
	for _, attach := range []string{"tcx", "tc"} {
		p := newPatient(t, attach)
		shared := api.Object{Kind: api.KindInterface, Name: "uplink", Spec: []byte(`{"address":"192.0.2.1"}`)} // on eth0
		p.apply(shared)
		found, code := p.doctor()
		for key, f := range found {
			expected := f.ID == "files.group" || f.ID == "groups.missing" || f.ID == "kernel.btf" || attach == "tc" && f.ID == "kernel.tcx"
			if !expected {
				t.Errorf("%s: found %s: %s", attach, key, f.What)
			}
		}
		if code != 0 {
			t.Errorf("%s: exit code %d", attach, code)
		}
	}
}

func TestDoctorOfDevicesThatWent(t *testing.T) {
	p := newPatient(t, "tcx")
	p.kill()
	p.ns.DeleteLink(t, "eth1")
	p.finds("warning", "devices.missing Interface/eth1", "needs the device eth1", "")
	if _, err := os.Stat(filepath.Join(p.ports, "eth1")); err != nil {
		t.Errorf("pins in use were removed: %v", err)
	}
	p.remove(p.path("state"))
	p.finds("error", "state.lost state/state.db", "does not exist", "")
	store, _, err := state.Open(state.Config{Dir: p.path("state"), Decode: control.Decode}) // the desired state is empty
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	found, _ := p.doctor()
	wantFinding(t, found, "hooks.unwanted device eth0", "no longer exists")
	p.finds("warning", "pins.stale "+filepath.Join(p.ports, "eth1"), "a deleted device", "rm -r ")
	if _, err := os.Stat(filepath.Join(p.ports, "eth0")); err != nil {
		t.Errorf("pins of an existing device were removed: %v", err)
	}
}

// TestLostStoreTakesNothingOff: a store that is missing while programs are attached is treated like
// a damaged store, even at later starts.
func TestLostStoreTakesNothingOff(t *testing.T) {
	p := newPatient(t, "tcx")
	for range 2 {
		p.kill()
		p.remove(p.path("state"))
		for range 2 {
			p.start()
			if h := p.status().Health; !strings.Contains(fmt.Sprint(h), "it did not exist, although the data plane was active") {
				t.Errorf("health %+v", h)
			}
			found, _ := p.doctor()
			for key, f := range found {
				if strings.HasPrefix(f.ID, "hooks.") {
					t.Errorf("found %s: %s", key, f.What)
				}
			}
			for _, hook := range []string{"eth0/ingress", "eth0/egress", "eth1/ingress", "eth1/egress"} {
				if _, err := os.Stat(filepath.Join(p.ports, hook)); err != nil {
					t.Error(err)
				}
			}
			p.kill()
		}
		p.start()
	}
}

func TestDoctorOfMissingPrograms(t *testing.T) {
	p := newPatient(t, "tcx")
	var loopback []string
	eventually(t, func() (there bool) { // the programs on lo are attached once a service needs them
		loopback, _ = filepath.Glob(filepath.Join(p.ports, "*lo", "*"))
		return len(loopback) > 0
	})
	p.kill()
	if found, _ := p.doctor(); found["hooks.unwanted device lo"].ID != "" {
		t.Error("the programs on lo, which Services need, are reported as unwanted")
	}
	p.remove(filepath.Join(p.ports, "eth0/egress"), filepath.Join(p.ports, "eth1"), p.pin("layout-1/ll_service"))
	p.ns.Run(t, "ip", "link", "set", "eth0", "down")
	p.finds("error", "pins.missing "+p.pin("layout-1"), "ll_service", "pinned again")
	p.finds("error", "hooks.half Interface/eth0", "1 of 2 programs", "")
	p.finds("error", "hooks.missing Interface/eth1", "no programs on the device eth1", "")
	p.finds("warning", "devices.down device eth0", "is down", "")
	p.remove(filepath.Join(p.ports, "eth0"), filepath.Dir(loopback[0]), p.pin("layout-1/ll_ct4"))
	p.finds("error", "pins.missing "+p.pin("layout-1"), "ll_ct4", "")
	if _, code := p.doctor(); code != exitFailed {
		t.Errorf("exit code %d with errors", code)
	}
}

// TestPinsAgain: another program removes all pins while the daemon runs. The daemon restores the
// pins, and finds its tables after a restart.
func TestPinsAgain(t *testing.T) {
	p := newPatient(t, "tcx")
	p.remove(p.pin("layout-1"))
	eventually(t, func() bool {
		status := p.status()
		_, err := os.Stat(p.pin("layout-1/ll_ct4"))
		return err == nil && status.Repairs > 0 && status.Health.State == "ok"
	})
	p.kill()
	p.start()
	if _, ok := p.get(api.KindService, "web"); !ok {
		t.Error("the service is lost")
	}
	if repairs := p.status().Repairs; repairs != 0 {
		t.Errorf("%d repairs after the restart: the maps are new", repairs)
	}
}

// TestDoctorOfStrayFilters: the pins were removed, but the filters stayed attached.
func TestDoctorOfStrayFilters(t *testing.T) {
	p := newPatient(t, "tc")
	p.kill()
	p.remove(filepath.Join(p.ports, "eth1"))
	p.finds("warning", "filters.stray device eth1, tc-ingress", "no pin for it", "removed the filter")
	p.ns.Do(t, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		filters, err := netlink.FilterList(eth0, netlink.HANDLE_MIN_INGRESS)
		if err == nil && len(filters) != 1 {
			err = fmt.Errorf("%d filters on eth0, want ours", len(filters))
		}
		return err
	})
	// A filter that uses another program's maps belongs to that program.
	layout, err := ebpf.LoadPinnedMap(p.pin("layout-1/ll_ct4"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer layout.Close()
	p.remove(p.pins)
	found, _ := p.doctor("--fix")
	wantFinding(t, found, "filters.other device eth0, tc-ingress", fmt.Sprintf("process %d", os.Getpid()))
	if f := found["filters.other device eth0, tc-ingress"]; f.Fixed != "" {
		t.Errorf("repaired: %s", f.Fixed)
	}
}

func pinMap(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorOfForeignPins(t *testing.T) {
	p := newPatient(t, "tcx")
	ghost := filepath.Join(filepath.Dir(p.pins), "loxilight-ghost")
	pinMap(t, ghost+"/layout-1/ll_ct4")
	pinMap(t, p.pin("layout-1/foreign"))
	p.finds("warning", "pins.orphan "+ghost, "neither configuration nor state", "rm -r ")
	p.finds("note", "pins.strange "+p.pin("layout-1"), "foreign", "")
	if _, err := os.Stat(ghost); err == nil {
		t.Error("the pins of no instance still exist")
	}
	// An instance with attached programs is not removed.
	if err := os.MkdirAll(ghost+"/layout-1/ports/0/eth9", 0o700); err != nil {
		t.Fatal(err)
	}
	var foreign link.Link
	p.ns.Do(t, func() (err error) { foreign, err = attachTCX("eth1", link.Tail(), "foreign"); return err })
	defer foreign.Close()
	if err := foreign.Pin(ghost + "/layout-1/ports/0/eth9/ingress"); err != nil {
		t.Fatal(err)
	}
	p.finds("warning", "pins.orphan "+ghost, "1 programs are attached", "")
	p.kill()
	pinMap(t, p.pin("layout-99/ll_ct4"))
	found := p.finds("error", "pins.layout "+p.pin("layout-99"), "a different layout", "")
	wantFinding(t, found, "pins.refused "+p.pins, "cannot be taken over")
}
