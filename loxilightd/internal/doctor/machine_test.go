// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// inspection sets the kernel state that the examiner reads.
func (r *rig) inspection(i *datapath.Inspection) {
	r.o.Inspect = func(datapath.InspectOptions) (*datapath.Inspection, error) { return i, nil }
}

func TestNetworkd(t *testing.T) {
	r := newRig(t)
	r.commands["systemctl is-active systemd-networkd.service"] = "active\n"
	found := r.examine(false)
	r.expect(found, "warning", "networkd.foreign systemd-networkd ManageForeignRoutes", "is on")
	r.expect(found, "warning", "networkd.foreign systemd-networkd ManageForeignRoutingPolicyRules", "is on")
	drop, err := os.ReadFile("../../../systemd/networkd.conf")
	r.ok(err)
	r.machine("/usr/lib/systemd/networkd.conf.d/loxilight.conf", string(drop))
	for key := range r.examine(false) {
		if strings.HasPrefix(key, "networkd.") {
			t.Errorf("found with the package's drop-in: %s", key)
		}
	}
	// A file in /etc with the same name overrides the package's drop-in.
	r.machine("/etc/systemd/networkd.conf.d/loxilight.conf", "[Network]\n#ManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no")
	found = r.examine(false)
	r.expect(found, "warning", "networkd.foreign systemd-networkd ManageForeignRoutes", "is on")
	if _, ok := found["networkd.foreign systemd-networkd ManageForeignRoutingPolicyRules"]; ok {
		t.Error("what a drop-in in /etc turns off is called on")
	}
}

func TestMemory(t *testing.T) {
	r := newRig(t)
	r.machine("/proc/meminfo", "MemTotal:        2097152 kB\nMemFree: 1 kB")
	r.commands["systemctl show loxilightd.service"] = "LoadState=loaded\nExecStart=" + r.o.ConfigFile + "\nMemoryMax=1073741824\n"
	r.inspection(&datapath.Inspection{Layouts: []datapath.InspectedLayout{{Path: "p", Current: true, Maps: 1, Bytes: 1100 << 20}}})
	found := r.examine(false)
	r.expect(found, "warning", "memory.tables tables", "take 1100 MiB, 53 % of the machine's 2048 MiB")
	r.expect(found, "error", "memory.limit loxilightd.service", "MemoryMax=1024 MiB")
	r.machine("/proc/meminfo", "MemTotal:        1310720 kB")
	r.expect(r.examine(false), "error", "memory.tables tables", "85 %")
}

// TestForwardDrops: rules that drop packets in the forward chain matter if Services, PodNetworks or
// NATs exist.
func TestForwardDrops(t *testing.T) {
	r := newRig(t)
	r.commands["nft"] = `{"nftables":[
		{"chain":{"family":"ip","table":"filter","name":"FORWARD","type":"filter","hook":"forward","policy":"drop"}},
		{"chain":{"family":"inet","table":"firewalld","name":"filter_FORWARD","type":"filter","hook":"forward","policy":"accept"}},
		{"rule":{"family":"inet","table":"firewalld","chain":"filter_FORWARD","expr":[{"reject":{}}]}}]}`
	for kind, want := range map[string]int{"": 0, state.KindInterface: 0, state.KindService: 3, state.KindPodNetwork: 3, state.KindNAT: 3} {
		x := &examiner{Options: r.o, ctx: t.Context(), plane: &datapath.Inspection{
			ForwardDrops: []string{"iptables-legacy chain FORWARD", "nftables chain ip filter FORWARD"},
		}}
		if kind != "" {
			x.desired.objects = []*state.Object{{Key: state.Key{Kind: kind, Name: "one"}}}
		}
		x.checkFirewall()
		var objects []string
		for _, f := range x.findings {
			if f.ID != "firewall.forward" || f.Severity != "warning" {
				t.Errorf("%s: found %+v", kind, f)
			}
			objects = append(objects, f.Object)
		}
		if len(objects) != want || want > 0 && !slices.Equal(objects, append(slices.Clone(x.plane.ForwardDrops), "nftables chain inet firewalld filter_FORWARD")) {
			t.Errorf("%s: found %q", kind, objects)
		}
	}
}

// TestLayouts checks findings that need a kernel or a state of the pins that a test cannot create.
func TestLayouts(t *testing.T) {
	r := newRig(t)
	r.inspection(&datapath.Inspection{Layout: 1, Layouts: []datapath.InspectedLayout{{
		Path: "p", Current: true, Maps: 3, Resized: []string{"ll_ct4"}, Sizes: map[string]datapath.InspectedSize{"ll_slot": {Is: 100, Want: 50}},
	}}, Unseen: map[string]string{"pin x": "why"}})
	found := r.examine(false)
	r.expect(found, "note", "pins.resize p", "ll_ct4")
	r.expect(found, "note", "tables.size p", "ll_slot 100 rather than 50")
	report := Run(t.Context(), r.o)
	if len(report.Unseen) == 0 || report.Unseen[0].Why != "why" {
		t.Errorf("unseen: %v", report.Unseen)
	}
}

func TestPreflight(t *testing.T) {
	r := newRig(t)
	r.inspection(&datapath.Inspection{Layout: 1, Devices: []datapath.InspectedDevice{{Name: "eth0", Exists: true, Up: true, IngressQdisc: true}}})
	p := datapath.Preflight{
		Kernel: "6.1.0", Hooks: datapath.PreflightHooks{OK: true, Use: "tc", Fallback: "kernel 6.1.0 has no tcx"},
		Programs: []datapath.PreflightProgram{
			{Program: "ll_tc_ingress", Netns: "host", Error: "too complex", Verifier: []string{"BPF program is too large"}},
			{Program: "ll_xdp", Netns: "host", Optional: true, Error: "no XDP"},
		},
	}
	r.o.Preflight = func() (datapath.Preflight, error) { return p, nil }
	found := r.examine(false)
	r.expect(found, "error", "kernel.refuses program ll_tc_ingress (netns host)", "too complex\nBPF program is too large")
	r.expect(found, "warning", "kernel.refuses program ll_xdp (netns host)", "no XDP")
	r.expect(found, "note", "kernel.tcx hooks", "kernel 6.1.0 has no tcx")
	r.expect(found, "error", "qdiscs.ingress device eth0", "clsact")
	p.Hooks = datapath.PreflightHooks{}
	p.Programs = append(p.Programs, datapath.PreflightProgram{Program: "ll_tc_ingress", Netns: "host", TakingOver: true, Error: "too complex"})
	found = r.examine(false)
	r.expect(found, "error", "kernel.refuses program ll_tc_ingress (taking over) (netns host)", "too complex")
	if f, ok := found["kernel.hooks hooks"]; ok {
		t.Errorf("hooks were not tried, and are reported: %+v", f)
	}
	p = datapath.Preflight{Hooks: datapath.PreflightHooks{Error: "no cls_bpf"}}
	r.expect(r.examine(false), "error", "kernel.hooks hooks", "no cls_bpf")
	r.o.StartOnly = true
	report := Run(t.Context(), r.o)
	if !slices.Equal(report.Checked, []string{"configuration", "start of the daemon"}) || len(report.Findings) != 1 || report.Daemon != "" {
		t.Errorf("without the instance: %+v", report)
	}
}

func TestNeighbours(t *testing.T) {
	r := newRig(t)
	r.machine("/proc/sys/net/ipv4/neigh/default/gc_thresh3", "1")
	x := &examiner{Options: r.o, ctx: t.Context(), plane: &datapath.Inspection{Layout: 1, Routes: map[netip.Addr]datapath.InspectedRoute{}}}
	s := &state.Service{}
	for _, a := range []string{"10.0.1.2:80", "10.0.1.3:80"} {
		b := netip.MustParseAddrPort(a)
		s.Backends = append(s.Backends, datapath.Backend{Addr: b})
		x.plane.Routes[b.Addr()] = datapath.InspectedRoute{Local: true}
	}
	x.desired = desired{known: true, objects: []*state.Object{{Key: state.Key{Kind: "Service", Name: "web"}, Value: s}}}
	x.checkNetwork()
	if len(x.findings) != 1 || x.findings[0].Object != "net.ipv4.neigh.default.gc_thresh3" || x.findings[0].Severity != "warning" {
		t.Errorf("found %+v", x.findings)
	}
}

// TestInspectionFails: a failed inspection is reported, but causes no other findings.
func TestInspectionFails(t *testing.T) {
	r := newRig(t)
	r.o.Inspect = func(datapath.InspectOptions) (*datapath.Inspection, error) {
		return nil, errors.New("lacks CAP_BPF")
	}
	report := Run(t.Context(), r.o)
	for _, f := range report.Findings {
		if strings.HasPrefix(f.ID, "hooks.") || strings.HasPrefix(f.ID, "pins.") {
			t.Errorf("found %+v", f)
		}
	}
	if len(report.Unseen) != 1 || report.Unseen[0].Why != "lacks CAP_BPF" {
		t.Errorf("unseen: %v", report.Unseen)
	}
}

// TestTables checks problems that a daemon reports about itself.
func TestTables(t *testing.T) {
	r := newRig(t)
	x := &examiner{Options: r.o, ctx: t.Context()}
	x.daemon.version = &api.VersionResult{Version: "1.2.2"}
	x.daemon.status = statusWith(map[string][2]uint64{"connections IPv6": {85, 100}, "services": {96, 100}, "backends": {79, 100}, "natBlocks": {90, 100}})
	x.checkRunning()
	severities := map[string]string{}
	for _, f := range x.findings {
		severities[f.ID+" "+f.Object] = f.Severity
		if f.Object == "table natBlocks" && !(strings.Contains(f.Do, "tables.connections") && strings.Contains(f.Why, "no_port")) {
			t.Errorf("found %+v, want what to raise, and how drops are reported", f)
		}
	}
	want := map[string]string{
		"tables.full table connections IPv6": "warning", "tables.full table services": "error", "tables.full table natBlocks": "warning",
		"objects.not_ready Service/web": "error", "objects.not_ready Interface/eth9": "warning",
		"daemon.repairs loxilightd": "note", "daemon.degraded loxilightd": "warning", "daemon.instance " + x.socket(): "error",
		"daemon.version loxilightd": "warning",
	}
	for key, severity := range want {
		if severities[key] != severity {
			t.Errorf("%s is %q, want %s", key, severities[key], severity)
		}
	}
	if len(severities) != len(want) {
		t.Errorf("found %v", severities)
	}
}

func statusWith(tables map[string][2]uint64) *api.StatusResult {
	s := &api.StatusResult{
		Instance: "other", Repairs: 3, Capacity: map[string]api.Usage{},
		Health:   api.Health{State: "degraded", Messages: []string{"2 objects are not Ready", "table services is nearly full: 96 of 100 entries used", "the disk is full"}},
		NotReady: []api.NotReady{{Object: "Service/web", State: "Error", Message: "x"}, {Object: "Interface/eth9", State: "Pending"}},
	}
	for name, u := range tables {
		s.Capacity[name] = api.Usage{Used: u[0], Size: u[1]}
	}
	return s
}
