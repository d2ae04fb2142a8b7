// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// rig is a host in a namespace of its own, and a switch with a unique name.
type rig struct {
	t    *testing.T
	host *testnet.NS
	cfg  datapath.Config
	n    *Network
}

// newRig opens a Network that has a switch of its own, or none if merged.
func newRig(t *testing.T, merged bool) *rig {
	t.Helper()
	r := &rig{t: t, host: testnet.New(t, "host")}
	r.cfg = datapath.Config{
		SwitchNamespace: testnet.UniqueName("switch"), HostDevice: "loxi_host", SwitchDevice: "hs_host",
		Instance: "test", StateDir: t.TempDir(),
	}
	if merged {
		r.cfg.SwitchNamespace = "host"
	}
	t.Cleanup(func() {
		r.close()
		if !merged {
			r.deleteSwitch()
		}
	})
	r.open()
	return r
}

// open opens the Network, as the daemon does at startup.
func (r *rig) open() {
	r.t.Helper()
	r.host.Do(r.t, func() (err error) {
		r.n, err = Open(r.cfg, slog.New(slog.DiscardHandler))
		return err
	})
}

func (r *rig) close() {
	r.t.Helper()
	if r.n == nil {
		return
	}
	if err := r.n.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
	r.n = nil
}

// restart simulates kill -9: only the state of the kernel and the journal remain.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

// deleteSwitch deletes the switch as ip netns del does.
func (r *rig) deleteSwitch() {
	path := filepath.Join("/run/netns", r.cfg.SwitchNamespace)
	_ = unix.Unmount(path, unix.MNT_DETACH)
	_ = os.Remove(path)
}

// sw returns the current switch.
func (r *rig) sw() *testnet.NS {
	r.t.Helper()
	if isHost(r.cfg) {
		return r.host
	}
	return testnet.Named(r.t, r.cfg.SwitchNamespace)
}

func (r *rig) bridge(name datapath.BridgeName, b datapath.Bridge) {
	r.t.Helper()
	if err := r.n.Bridges().Update(context.Background(), name, b); err != nil {
		r.t.Fatalf("bridge %s: %v", name, err)
	}
	if ok, err := r.n.Bridges().Verify(context.Background(), name); !ok || err != nil {
		r.t.Fatalf("bridge %s is not as configured right after: %v, %v", name, ok, err)
	}
}

func (r *rig) route(name datapath.RouteName, v datapath.Route) {
	r.t.Helper()
	if err := r.n.Routes().Update(context.Background(), name, v); err != nil {
		r.t.Fatalf("route %s: %v", name, err)
	}
	if ok, err := r.n.Routes().Verify(context.Background(), name); !ok || err != nil {
		r.t.Fatalf("route %s is not as configured right after: %v, %v", name, ok, err)
	}
}

// wantAbsent checks that err wraps ErrAbsent and contains the text in what.
func (r *rig) wantAbsent(err error, what string) {
	r.t.Helper()
	if !errors.Is(err, datapath.ErrAbsent) || !strings.Contains(err.Error(), what) {
		r.t.Errorf("got error %v, want %s to be absent", err, what)
	}
}

// requireIP skips the test unless ip is from iproute2.
func requireIP(t *testing.T) {
	t.Helper()
	if !haveIP() {
		t.Skip("needs iproute2")
	}
}

// haveIP reports whether ip is from iproute2, which includes bridge.
func haveIP() bool {
	_, err := exec.LookPath("bridge")
	return err == nil
}

// has checks that the output of a command contains all of want and none of lacks.
func (r *rig) has(ns *testnet.NS, command string, want []string, lacks ...string) {
	r.t.Helper()
	words := strings.Fields(command)
	if words[0] != "cat" && !haveIP() {
		return // emulated machines check only the rest
	}
	out := ns.Run(r.t, words[0], words[1:]...)
	for _, w := range want {
		if !strings.Contains(out, w) {
			r.t.Errorf("%s has no %q:\n%s", command, w, out)
		}
	}
	for _, w := range lacks {
		if strings.Contains(out, w) {
			r.t.Errorf("%s has %q:\n%s", command, w, out)
		}
	}
}

// marked counts the addresses of a device of the switch that have our protocol.
func (r *rig) marked(device string) (count int) {
	r.t.Helper()
	link, err := r.n.sw.Link(device)
	if err != nil || link == nil {
		r.t.Fatalf("%s: %v", device, err)
	}
	const ifaProto = 11 // IFA_PROTO
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		m := nl.NewIfAddrmsg(family)
		m.Index = uint32(link.Attrs().Index)
		request.AddData(m)
		messages, err := r.n.sw.Execute(request, unix.RTM_NEWADDR)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, message := range messages {
			attrs, err := nl.ParseRouteAttr(message[m.Len():])
			if err != nil {
				r.t.Fatal(err)
			}
			for _, a := range attrs {
				if a.Attr.Type == ifaProto && len(a.Value) > 0 && a.Value[0] == 0x4c {
					count++
				}
			}
		}
	}
	return count
}

// addHost creates a namespace that is connected to a device of the switch or of another namespace.
func (r *rig) addHost(name string, to *testnet.NS, device string, addrs ...string) *testnet.NS {
	r.t.Helper()
	ns := testnet.New(r.t, name)
	testnet.Veth(r.t, testnet.Port{NS: ns, Name: "eth0", Addrs: addrs}, testnet.Port{NS: to, Name: device})
	return ns
}

// reach checks that one host receives an echo of a datagram from the other.
func (r *rig) reach(from *testnet.NS, target string) {
	r.t.Helper()
	if _, err := testtraffic.TalkUDP(from, "", target, []byte("a datagram")); err != nil {
		r.t.Errorf("to %s: %v", target, err)
	}
}

// awaitSignal waits for the next change signal.
func (r *rig) awaitSignal(what string) {
	r.t.Helper()
	select {
	case <-r.n.Changed():
	case <-time.After(2 * time.Second):
		r.t.Fatalf("no signal that %s", what)
	}
}

// drainSignals discards pending signals.
func (r *rig) drainSignals() {
	for {
		select {
		case <-r.n.Changed():
		case <-time.After(3 * signalPause):
			return
		}
	}
}

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func via(addr, device string) datapath.NextHop {
	h := datapath.NextHop{Device: device, Weight: 1}
	if addr != "" {
		h.Via = netip.MustParseAddr(addr)
	}
	return h
}
