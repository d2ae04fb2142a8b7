// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// site is a switch with a bridge, and one pod.
//
//	switch: br0 1400 ── hs1 ══ eth0 :pod
type site struct {
	*Links
	t       *testing.T
	sw, pod *testnet.NS
}

func newSite(t *testing.T) *site {
	s := &site{t: t, sw: testnet.New(t, "switch"), pod: testnet.New(t, "pod")}
	s.sw.Bridge(t, "br0")
	s.sw.MTU(t, "br0", 1400)
	var err error
	if s.Links, err = Open(datapath.Config{SwitchNamespace: s.sw.Name(), Instance: "pods-test"}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) link() *datapath.PodLink {
	gw4, gw6 := netip.MustParseAddr("10.201.3.1"), netip.MustParseAddr("fd00:201:3::1")
	return &datapath.PodLink{
		Device: "hs1", Bridge: "br0", Netns: "/run/netns/" + s.pod.Name(), IfName: "eth0",
		MAC: net.HardwareAddr{0x0a, 0x4c, 10, 201, 3, 7}, Label: "shop/web c1/eth0",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.201.3.7/24"), netip.MustParsePrefix("fd00:201:3::7/64")},
		Routes: []datapath.PodRoute{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Via: gw4}, {Prefix: netip.MustParsePrefix("::/0"), Via: gw6, MTU: 1300},
			{Prefix: netip.MustParsePrefix("192.0.2.0/24")},
		},
	}
}

func (s *site) make(l *datapath.PodLink) {
	s.t.Helper()
	if err := s.Make(s.t.Context(), l); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) wants(ns *testnet.NS, args string, wants ...string) {
	s.t.Helper()
	out := ns.Run(s.t, "ip", strings.Fields(args)...)
	for _, w := range wants {
		if !strings.Contains(out, w) {
			s.t.Errorf("ip %s: no %q in\n%s", args, w, out)
		}
	}
}

func TestMake(t *testing.T) {
	s := newSite(t)
	l := s.link()
	l.RouteMTU = 1350
	s.make(l)
	if l.MTU != 1400 {
		t.Errorf("MTU %d, want the bridge's", l.MTU)
	}
	s.wants(s.pod, "-d link show eth0", "link/ether 0a:4c:0a:c9:03:07", "mtu 1400", "NO-CARRIER", ",UP")
	s.wants(s.pod, "addr show eth0", "inet 10.201.3.7/24", "inet6 fd00:201:3::7/64", "inet6 fe80::84c:aff:fec9:307/64")
	s.wants(s.pod, "route show", "default via 10.201.3.1 dev eth0 linkdown mtu 1350", "192.0.2.0/24 dev eth0 scope link linkdown \n")
	s.wants(s.pod, "-6 route show", "default via fd00:201:3::1 dev eth0", "mtu 1300")
	s.wants(s.sw, "link show hs1", "state DOWN", "alias loxilight pods-test pod shop/web c1/eth0", "mtu 1400")
	if err := s.Check(t.Context(), l); err == nil || !strings.Contains(err.Error(), "is down") {
		t.Errorf("check of a link that is not open: %v", err)
	}
	wire := s.sw.Wire(t, "hs1")
	if err := s.Links.Open(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	s.wants(s.sw, "link show hs1", ",UP,LOWER_UP")
	if out := s.sw.Run(t, "ip", "-6", "addr", "show", "hs1"); strings.Contains(out, "inet6") {
		t.Errorf("the switch's end has an address:\n%s", out)
	}
	for what, frame := range map[string]string{
		"ARP announcement":        "ffffffffffff0a4c0ac9030708060001080006040001" + "0a4c0ac903070ac90307" + "0000000000000ac90307",
		"neighbour advertisement": "3333000000010a4c0ac9030786dd6000000000203aff" + "fd000201000300000000000000000007" + "ff020000000000000000000000000001" + "8800406c20000000" + "fd000201000300000000000000000007" + "02010a4c0ac90307",
	} {
		wire.Await(t, 5e9, what, func(f []byte) bool { return strings.HasPrefix(hex.EncodeToString(f), frame) })
	}
	if err := s.Check(t.Context(), l); err != nil {
		t.Errorf("check of an unchanged pod: %v", err)
	}
	if names, err := s.Devices(t.Context()); err != nil || len(names) != 1 || names["hs1"] != "shop/web c1/eth0" {
		t.Errorf("devices %q, %v", names, err)
	}
	for range 2 {
		if err := s.Delete(t.Context(), "hs1"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if out, err := s.pod.TryRun("ip", "link", "show", "eth0"); err == nil {
		t.Errorf("the pod has its device still:\n%s", out)
	}
}

func TestCheckFinds(t *testing.T) {
	for command, message := range map[string]string{
		"link set eth0 down":                                  "down",
		"link set eth0 address 02:00:00:00:00:09":             "hardware address",
		"addr del 10.201.3.7/24 dev eth0":                     "10.201.3.7/24",
		"addr del fd00:201:3::7/64 dev eth0":                  "fd00:201:3::7/64",
		"route del default":                                   "0.0.0.0/0",
		"-6 route del default":                                "::/0",
		"-6 route replace default via fd00:201:3::9 dev eth0": "::/0",
		"link set eth0 name eth9":                             "does not exist",
		"link del eth0":                                       "hs1",
	} {
		t.Run(command, func(t *testing.T) {
			s := newSite(t)
			l := s.link()
			s.make(l)
			if err := s.Links.Open(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			s.pod.Run(t, "ip", strings.Fields(command)...)
			if err := s.Check(t.Context(), l); err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("check: %v, want an error with %q", err, message)
			}
		})
	}
}

// TestCheckFindsMTU: if another program changes the MTU of the switch's end, larger packets are
// lost. The pod may change the MTU of its own end.
func TestCheckFindsMTU(t *testing.T) {
	s := newSite(t)
	l := s.link()
	s.make(l)
	if err := s.Links.Open(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	s.pod.Run(t, "ip", "link", "set", "eth0", "mtu", "1300")
	if err := s.Check(t.Context(), l); err != nil {
		t.Errorf("check with another MTU within the pod: %v", err)
	}
	s.sw.Run(t, "ip", "link", "set", "hs1", "mtu", "1000")
	if err := s.Check(t.Context(), l); err == nil || !strings.Contains(err.Error(), "has MTU 1000, not 1400") {
		t.Errorf("check with another MTU in the switch: %v", err)
	}
}

// TestMakeFails: a failure leaves nothing of ours behind, and does not affect other programs'
// devices.
func TestMakeFails(t *testing.T) {
	s := newSite(t)
	l := s.link()
	l.Routes[0].Via = netip.MustParseAddr("198.51.100.1") // not on the link
	if err := s.Make(t.Context(), l); err == nil {
		t.Error("a gateway that is nowhere was taken")
	}
	if names, err := s.Devices(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}
	s.make(s.link())
	other := s.link()
	other.Device = "hs2"
	if err := s.Make(t.Context(), other); !errors.Is(err, datapath.ErrExists) {
		t.Errorf("a second device of the same name: %v", err)
	}
	if names, err := s.Devices(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("devices %q, %v: want the first alone", names, err)
	}
	s.sw.Run(t, "ip", "link", "add", "hs3", "type", "veth", "peer", "name", "foreign")
	other.Device, other.IfName = "hs3", "eth3"
	if err := s.Make(t.Context(), other); !errors.Is(err, datapath.ErrNameTaken) {
		t.Errorf("in the place of another program's device: %v", err)
	}
	if err := s.Delete(t.Context(), "hs3"); err != nil {
		t.Error(err)
	}
	s.wants(s.sw, "link show hs3", "hs3@foreign")
}

// TestLeftover: a link that a killed daemon left without its mark is recognized, and a new link
// replaces it.
func TestLeftover(t *testing.T) {
	s := newSite(t)
	s.make(s.link())
	s.sw.Run(t, "ip", "link", "set", "hs1", "alias", "")
	if names, err := s.Devices(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("devices %q, %v: want it known by its address", names, err)
	}
	l := s.link()
	l.IfName = "eth1" // the pod still has the old link until its other end is deleted
	s.make(l)
	if out, err := s.pod.TryRun("ip", "link", "show", "eth0"); err == nil {
		t.Errorf("the leftover still exists:\n%s", out)
	}
}

func TestNoNamespace(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/run/netns/none-of-that-name", "/etc/passwd", "/dev/null", "/run/netns/" + s.sw.Name()} {
		l := s.link()
		l.Netns = path
		if err := s.Make(t.Context(), l); !errors.Is(err, datapath.ErrNetns) {
			t.Errorf("%s: %v, want an error that it is no pod's", path, err)
		}
	}
	s.cfg.SwitchNamespace = "none-of-that-name"
	if err := s.Make(t.Context(), s.link()); !errors.Is(err, datapath.ErrAbsent) {
		t.Errorf("without a switch: %v", err)
	}
	if err := s.Delete(t.Context(), "hs1"); err != nil {
		t.Errorf("delete without a switch: %v", err)
	}
}

func TestBandwidth(t *testing.T) {
	s := newSite(t)
	l := s.link()
	l.Ingress, l.Egress = datapath.PodRate{Rate: 8_000_000, Burst: 800_000}, datapath.PodRate{Rate: 4_000_000, Burst: 400_000}
	s.make(l)
	for ns, want := range map[*testnet.NS]string{s.sw: "rate 8Mbit burst 100000b", s.pod: "rate 4Mbit burst 50000b"} {
		device := map[bool]string{true: "hs1", false: "eth0"}[ns == s.sw]
		if out := ns.Run(t, "tc", "qdisc", "show", "dev", device); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in %s", device, want, out)
		}
	}
}

func TestNodeAddresses(t *testing.T) {
	s := newSite(t)
	list, err := s.NodeAddresses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if a.IsLoopback() || a.IsLinkLocalUnicast() {
			t.Errorf("%s is no address by which others reach the node", a)
		}
	}
}
