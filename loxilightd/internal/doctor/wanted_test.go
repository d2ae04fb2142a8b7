// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// store puts objects into the stopped daemon's store.
func (r *rig) store(objects ...*state.Object) {
	r.t.Helper()
	s, _, err := state.Open(state.Config{
		Dir: r.o.Config.StateDir, Tables: datapath.DefaultTables(),
		Decode: func(string, []byte) (state.Value, error) { return &state.Service{}, nil },
	})
	r.ok(err)
	_, err = s.Commit(&state.Transaction{Put: objects, Owner: "cli"})
	r.ok(err)
	r.ok(s.Close())
}

func iface(name, device, netns string) *state.Object {
	return &state.Object{
		Key: state.Key{Kind: state.KindInterface, Name: name}, Owner: "cli", Spec: fmt.Sprintf(`{"device":%q,"netns":%q}`, device, netns),
		Value: &state.Interface{Port: datapath.Port{Device: device}},
	}
}

func TestWantedAndAttached(t *testing.T) {
	r := newRig(t)
	r.o.Config.Backend, r.o.Config.SwitchNamespace = "ebpf", "loxilight"
	r.store(iface("lan", "eth0", "host"), iface("pod", "hs3", "switch"))
	hooks := []datapath.InspectedHook{{Name: "tcx-egress", Attached: true}, {Name: "tcx-ingress", Attached: true}}
	ours := datapath.ChainProgram{Hook: "tcx", Ours: true, Program: "ll_tc_ingress", ID: 7}
	r.inspection(&datapath.Inspection{
		Layout: 1, NoSwitch: true,
		Ports: []datapath.InspectedPort{{Name: "lan", Path: "p", Current: true, Index: 3, Device: "eth1", Hooks: hooks}},
		Devices: []datapath.InspectedDevice{
			{Name: "eth0", Exists: true, Up: true, Ingress: []datapath.ChainProgram{ours, {Hook: "tc", Ours: true, Program: "loxilight_ingress", ID: 8}}},
			{Name: "hs3", Switch: true},
		},
	})
	found := r.examine(false)
	r.expect(found, "warning", "hooks.elsewhere Interface/lan", "eth1, but names eth0")
	r.expect(found, "error", "hooks.twice eth0 ingress", "by tcx")
	r.expect(found, "warning", "devices.no_switch Interface/pod", "which does not exist")
	report := Run(t.Context(), Options{Config: r.o.Config, ConfigFile: r.o.ConfigFile, Root: r.o.Root, Run: r.run, Objects: true})
	if len(report.Objects) != 2 || report.Objects[0].Name != "lan" || string(report.Objects[0].Spec) != `{"device":"eth0","netns":"host"}` {
		t.Errorf("objects of the store: %+v", report.Objects)
	}
	if !strings.Contains(report.Daemon, "does not run") {
		t.Errorf("the daemon %s", report.Daemon)
	}
}

// TestSharedDevice: if the addresses of two Interfaces are on one device, the programs belong to
// the first Interface, but serve both.
func TestSharedDevice(t *testing.T) {
	address := netip.MustParseAddr("2001:db8::7")
	hooks := []datapath.InspectedHook{{Name: "tcx-egress", Attached: true}, {Name: "tcx-ingress", Attached: true}}
	uplink := datapath.InspectedPort{Name: "uplink", Current: true, Index: 3, Device: "eth0", Hooks: hooks}
	for _, tt := range []struct {
		name  string
		port  datapath.Port
		there datapath.InspectedPort
		want  string
	}{
		{"another Interface's programs", datapath.Port{Device: "eth0", Address: address}, uplink, ""},
		{"on another device", datapath.Port{Device: "eth1", Address: address}, uplink, "hooks.missing"},
		{"chosen by its name", datapath.Port{Device: "eth0"}, uplink, "hooks.missing"},
		{"in the switch", datapath.Port{Device: "eth0", Address: address}, datapath.InspectedPort{Name: "uplink", Current: true, Index: 3, Device: "eth0", Switch: true}, "hooks.missing"},
		{"of another layout", datapath.Port{Device: "eth0", Address: address}, datapath.InspectedPort{Name: "uplink", Index: 3, Device: "eth0"}, "hooks.missing"},
		{"an endpoint's", datapath.Port{Device: "eth0", Address: address}, datapath.InspectedPort{Name: datapath.EndpointName("pod").Port(), Current: true, Index: 3, Device: "eth0"}, "hooks.missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.o.Config.Backend, r.o.Config.SwitchNamespace = "ebpf", "loxilight"
			x := &examiner{Options: r.o, ctx: t.Context(), plane: &datapath.Inspection{
				Layout: 1, Ports: []datapath.InspectedPort{tt.there},
				Devices: []datapath.InspectedDevice{{Name: "eth0", Exists: true}, {Name: "eth1", Exists: true}},
			}}
			x.checkInterface(iface("uplink6", "", "host"), "uplink6", tt.port)
			got := ""
			for _, f := range x.findings {
				got += f.ID
			}
			if got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
		})
	}
}

// TestRenamedDevice: the programs stay attached to a renamed device, and rules match its packets by
// its former name.
func TestRenamedDevice(t *testing.T) {
	r := newRig(t)
	r.o.Config.Backend, r.o.Config.SwitchNamespace = "ebpf", "loxilight"
	r.store(iface("lan", "eth0", "host"))
	hooks := []datapath.InspectedHook{{Name: "tcx-egress", Attached: true}, {Name: "tcx-ingress", Attached: true}}
	r.inspection(&datapath.Inspection{
		Layout:  1,
		Ports:   []datapath.InspectedPort{{Name: "lan", Path: "p", Current: true, Index: 3, Device: "wan7", Hooks: hooks}},
		Devices: []datapath.InspectedDevice{{Name: "eth0"}, {Name: "wan7", Exists: true, Up: true}},
	})
	found := r.examine(false)
	r.expect(found, "warning", "hooks.elsewhere Interface/lan", "the device was renamed")
	f := found["hooks.elsewhere Interface/lan"]
	for _, word := range []string{"ip link set wan7 name eth0", "llcli interface set lan --device wan7"} {
		if !strings.Contains(f.Do, word) {
			t.Errorf("do %q, want %q", f.Do, word)
		}
	}
	if f, ok := found["devices.missing Interface/lan"]; ok {
		t.Errorf("found %+v", f)
	}
}

func TestUnreadable(t *testing.T) {
	r := newRig(t)
	r.store(&state.Object{Key: state.Key{Kind: "Tunnel", Name: "north"}, Owner: "cli", Spec: "{}", Value: &state.Service{}})
	r.expect(r.examine(false), "warning", "state.unreadable Tunnel/north", "is not understood by this version")
}

func TestGroupOfFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_CHOWN")
	}
	r := newRig(t)
	r.machine("/etc/group", "loxilight:x:65534:\nloxilight-admin:x:65533:")
	r.repaired("warning", "files.group run", "want loxilight", "chgrp loxilight ")
	info, err := os.Stat(r.path("run"))
	r.ok(err)
	if stat := info.Sys().(*syscall.Stat_t); stat.Gid != 65534 {
		t.Errorf("group %d", stat.Gid)
	}
}

// mounts runs a script in a new mount namespace, and returns the process that keeps the namespace
// until the test ends.
func (r *rig) mounts(script string) (pid int) {
	r.t.Helper()
	cmd := exec.Command("sh", "-e", "-c", script+"\necho mounted\nexec cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	r.ok(err)
	out, err := cmd.StdoutPipe()
	r.ok(err)
	r.ok(cmd.Start())
	r.t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() }) // cat ends when its input is closed
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		r.t.Fatalf("%q, %v", line, err)
	}
	return cmd.Process.Pid
}

// TestPrivateMount: the daemon sees a different file system at the path of its pins.
func TestPrivateMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	r := newRig(t)
	r.mkdir("pins", 0o700)
	pid := r.mounts("mount -t tmpfs none " + r.path("pins"))
	r.o.Config.Backend = "ebpf"
	x := &examiner{Options: r.o, ctx: t.Context(), daemon: daemon{locked: true, pid: pid}}
	x.checkMount()
	if len(x.findings) != 1 || x.findings[0].ID != "bpffs.private" {
		t.Errorf("found %+v", x.findings)
	}
	x = &examiner{Options: r.o, ctx: t.Context(), daemon: daemon{locked: true, pid: os.Getpid()}}
	if x.checkMount(); len(x.findings) > 0 {
		t.Errorf("with the same mount: found %+v", x.findings)
	}
}

// TestReadOnlyMount: a Kubernetes volume from a ConfigMap cannot be written, whatever the modes of
// its files. For a symbolic link there, the mount of its target counts.
func TestReadOnlyMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	for _, options := range []string{"ro", "rw"} {
		t.Run(options, func(t *testing.T) {
			r := newRig(t)
			r.write("elsewhere.yaml", "")
			r.ok(os.Chmod(r.path("elsewhere.yaml"), 0o666))
			pid := r.mounts(`umask 0
				mount -t tmpfs -o mode=0777 none ` + r.path("loxilight") + `
				cd ` + r.path("loxilight") + `
				mkdir -p ..1/conf.d
				touch ..1/loxilightd.yaml ..1/conf.d/web.yaml
				ln -s ..1 ..data
				ln -s ..data/loxilightd.yaml ..data/conf.d .
				ln -s ` + fmt.Sprintf("/proc/%d/root", os.Getpid()) + r.path("elsewhere.yaml") + ` ..1/conf.d/away.yaml
				mount -o remount,` + options + " " + r.path("loxilight"))
			there := fmt.Sprintf("/proc/%d/root%s", pid, r.path("loxilight"))
			r.o.ConfigFile, r.o.Config.ObjectDir = there+"/loxilightd.yaml", there+"/conf.d"
			found := r.examine(true)
			for name, writable := range map[string]bool{
				"": options == "rw", "/loxilightd.yaml": options == "rw", "/conf.d": options == "rw", "/conf.d/web.yaml": options == "rw", "/conf.d/away.yaml": true,
			} {
				if f, ok := found["files.mode "+there+name]; ok != writable || ok && f.Severity != "error" {
					t.Errorf("loxilight%s: found %+v", name, f)
				}
			}
		})
	}
}

// TestReadOnlyMountLetsRead: modes that grant too much read access are reported on a read-only
// mount too.
func TestReadOnlyMountLetsRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	r := newRig(t)
	pid := r.mounts("mount -t tmpfs -o ro,mode=0777 none " + r.path("state"))
	r.o.Config.StateDir = fmt.Sprintf("/proc/%d/root%s", pid, r.path("state"))
	pid = r.mounts("mount -t tmpfs -o ro,mode=0770 none " + r.path("run"))
	r.o.Config.RunDir = fmt.Sprintf("/proc/%d/root%s", pid, r.path("run"))
	found := r.examine(false)
	r.expect(found, "warning", "files.mode "+r.o.Config.StateDir, "has mode 0777, want 0700")
	if f, ok := found["files.mode "+r.o.Config.RunDir]; ok {
		t.Errorf("found %+v", f)
	}
}

func TestYoungerConfiguration(t *testing.T) {
	r := newRig(t)
	x := &examiner{Options: r.o, ctx: t.Context()}
	x.daemon.status = &api.StatusResult{Uptime: api.Duration(time.Hour)}
	x.checkStarted()
	if len(x.findings) != 1 || x.findings[0].ID != "config.younger" {
		t.Errorf("found %+v", x.findings)
	}
	old := time.Now().Add(-2 * time.Hour)
	r.ok(os.Chtimes(r.o.ConfigFile, old, old))
	x.findings = nil
	if x.checkStarted(); len(x.findings) > 0 {
		t.Errorf("found %+v", x.findings)
	}
}

// TestFindingsAreDocumented: docs/findings.md describes each finding.
func TestFindingsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/findings.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| ((?:`[a-z0-9_.]+`,? ?)+)\\|").FindAllSubmatch(page, -1) {
		for _, id := range regexp.MustCompile("`([a-z]+\\.[a-z0-9_]+)`").FindAllSubmatch(m[1], -1) {
			documented[string(id[1])] = true
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	call := regexp.MustCompile(`find(?:File|Forwarding)?\((?:severity|family|"[a-z]+"), "([a-z]+\.[a-z_0-9]+)"`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllSubmatch(text, -1) {
			ids[string(m[1])] = true
		}
	}
	if len(ids) < 60 || !maps.Equal(ids, documented) {
		t.Errorf("%d findings; in the code and not in the page, or the other way round: %v", len(ids), difference(ids, documented))
	}
}

func difference(a, b map[string]bool) (keys []string) {
	for key := range a {
		if !b[key] {
			keys = append(keys, key)
		}
	}
	for key := range b {
		if !a[key] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// TestOurXDP checks the findings about packets that our XDP program does not see, and about its
// cost on a veth.
func TestOurXDP(t *testing.T) {
	r := newRig(t)
	r.o.Config.Backend, r.o.Config.SwitchNamespace = "ebpf", "loxilight"
	ours := &datapath.ChainProgram{Hook: "xdp", Ours: true, Program: "ll_xdp", ID: 7, Detail: "native"}
	r.inspection(&datapath.Inspection{Layout: 1, NoSwitch: true, Devices: []datapath.InspectedDevice{
		{Name: "eth0", Exists: true, Up: true, Type: "device", XDP: ours, VLANs: []string{"eth0.7"}, TagsHidden: true},
		{Name: "eth1", Exists: true, Up: true, Type: "veth", XDP: ours, VLANs: []string{"eth1.7"}, TagsHidden: true},
		{Name: "eth2", Exists: true, Up: true, Type: "device", XDP: ours, VLANs: []string{"eth2.7"}},
	}})
	found := r.examine(false)
	r.expect(found, "warning", "hooks.xdp_vlan device eth0", "VLANs: eth0.7")
	r.expect(found, "warning", "hooks.xdp_vlan device eth1", "VLANs: eth1.7")
	r.expect(found, "note", "hooks.xdp device eth1", "native, and is a veth")
	for key, do := range map[string]string{"eth0": "ethtool -K eth0 rxvlan off", "eth1": "txvlan off at the other end"} {
		if f := found["hooks.xdp_vlan device "+key]; !strings.Contains(f.Do, do) {
			t.Errorf("%s: do %q, want %q", key, f.Do, do)
		}
	}
	for _, f := range found {
		if f.Object == "device eth2" || f.ID == "hooks.xdp" && f.Object == "device eth0" {
			t.Errorf("%+v", f)
		}
	}
}
