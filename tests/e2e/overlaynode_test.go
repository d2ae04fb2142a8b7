// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestOverlayOwnFrontend: a node connects to a frontend at one of its own addresses, whose backend
// is a pod on another node. The pod sees the node's address in its pod subnet, so that replies
// return through the tunnel: TCP, UDP, fragments, and ICMP errors about them.
func TestOverlayOwnFrontend(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []meshKind{{tunnel: "vxlan", split: true}, {tunnel: "gre", split: true, over6: true}} {
		t.Run(kind.String(), func(t *testing.T) { ownFrontend(t, kind) })
	}
}

func ownFrontend(t *testing.T, kind meshKind) {
	m := newMesh(t, 2, kind)
	first, second := m.nodes[0], m.nodes[1]
	own, pod, link := "192.0.2.1", second.pod4(), "10.74.1.252"
	if kind.over6 {
		own, pod, link = "[2001:db8:74::1]", "["+second.pod6()+"]", "fd74:1::fc"
	}
	// Like the addresses of a PodNetwork's link.
	first.ns.Addr(t, "loxi_test", "10.74.1.252/31", "fd74:1::fc/127")
	testnet.Named(t, first.sw).Addr(t, "hs_host", "10.74.1.253/31", "fd74:1::fd/127")
	first.ns.Route(t, "10.74.2.0/24", "10.74.1.253")
	first.ns.Route(t, "fd74:2::/64", "fd74:1::fd")
	second.pod.MTU(t, "eth0", 1400)
	tcp, udp := second.pod.ServeTCP(t, pod+":4661", "own"), second.pod.ServeUDP(t, pod+":4661", "own")
	for _, proto := range []string{"tcp", "udp"} {
		first.LLCLI("service", "add", proto, "--frontend", own+":30080/"+proto, "--backend", pod+":4661", "--wait", "10s")
	}
	first.LLCLI("service", "add", "closed", "--frontend", own+":30081/udp", "--backend", pod+":4662", "--wait", "10s")
	first.LLCLI("service", "add", "large", "--frontend", own+":30082/udp", "--backend", pod+":4663", "--wait", "10s")

	asks := func(what string) {
		t.Helper()
		for i := range 3 {
			data := bytes.Repeat([]byte("sixteen bytes ok"), 1<<14)
			if name, err := testtraffic.TalkTCP(first.ns, "", own+":30080", data); err != nil || name != "own" {
				t.Errorf("%s: TCP %d: %q %v", what, i, name, err)
			}
			for _, size := range []int{40, 1000} {
				if name, err := testtraffic.TalkUDP(first.ns, "", own+":30080", bytes.Repeat([]byte("x"), size)); err != nil || name != "own" {
					t.Errorf("%s: UDP of %d bytes: %q %v", what, size, name, err)
				}
			}
		}
	}
	asks("at first")
	for _, s := range []*testnet.Server{tcp, udp} {
		if want := netip.MustParseAddr(link); !slices.Equal(s.Clients(), []netip.Addr{want}) {
			t.Errorf("the pod sees %v, want %v", s.Clients(), want)
		}
	}
	if err := fragments(t, first.ns, second.pod, own+":30082", pod+":4663"); err != nil {
		t.Error("an answer in fragments: ", err)
	}
	if err := refusedAt(first.ns, own+":30081"); err != nil {
		t.Error(err)
	}
	second.Kill()
	second.Start()
	asks("after a restart of the backend's node")
	if c := first.Counters("", ""); c.Drops["uplink_source"] != 0 {
		t.Errorf("replies left the tunnel: %v", c.Drops)
	}
}

// refusedAt sends a datagram to a closed port, and returns nil if the sender gets an error.
func refusedAt(ns *testnet.NS, to string) error {
	c, err := ns.Dial("udp", "", to, testtraffic.Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if name, err := testtraffic.ExchangeUDP(c, []byte("a question")); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("a closed port of the pod: %q %v, want connection refused", name, err)
	}
	return nil
}

// fragments starts a server at the address at, and sends a datagram to the address to, which must
// be answered in three fragments.
func fragments(t *testing.T, ns, server *testnet.NS, to, at string) error {
	t.Helper()
	want := bytes.Repeat([]byte("sixteen bytes ok"), 200)
	l := server.ListenUDP(t, at)
	defer l.Close()
	go func() {
		if _, from, err := l.ReadFrom(make([]byte, 16)); err == nil {
			_, _ = l.WriteTo(want, from) // if this fails, the reader fails, too
		}
	}()
	c, err := ns.Dial("udp", "", to, testtraffic.Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	got := make([]byte, 4000)
	if err := c.SetDeadline(time.Now().Add(testtraffic.Patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("a question")); err != nil {
		return err
	}
	n, err := c.Read(got)
	if err == nil && !bytes.Equal(got[:n], want) {
		return fmt.Errorf("%d bytes of %d, or others", n, len(want))
	}
	return err
}

// TestOverlayNoSource: without a netns for the switch, the tunnel's device has no address to which
// the source of the node's own clients, and of clients on the LAN, could be translated. The Service
// reports that, and what to do; once that is done, these clients are served.
func TestOverlayNoSource(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "geneve"})
	first, second := m.nodes[0], m.nodes[1]
	outside := testnet.New(t, "outside")
	testnet.Veth(t, testnet.Port{NS: m.lan, Name: "n9"}, testnet.Port{NS: outside, Name: "eth0", Addrs: []string{"192.0.2.9/24"}})
	m.lan.Run(t, "ip", "link", "set", "n9", "master", "br0")
	first.Apply("kind: Interface\nname: eth0\nspec: {device: eth0, role: uplink}")
	for _, source := range []string{"auto", "snat"} {
		first.LLCLI("service", "add", source, "--frontend", "192.0.2.1:"+map[string]string{"auto": "80", "snat": "81"}[source]+"/tcp",
			"--backend", second.pod4()+":4660", "--source", source)
	}
	state := func(name string) string { return first.LLCLI("get", "service", name, "-o", "json") }
	const why = `no IPv4 address to which their source could be translated: run ip address add ADDRESS dev hstunnel`
	testnet.Eventually(t, patience, "the Services name the missing address", func() bool {
		auto, snat := state("auto"), state("snat")
		return strings.Contains(auto, `"state": "Ready"`) && strings.Contains(auto, why) &&
			strings.Contains(snat, `"state": "Pending"`) && strings.Contains(snat, why)
	})
	for _, ns := range []*testnet.NS{first.ns, outside} {
		for _, port := range []string{"80", "81"} {
			if c, err := ns.Dial("tcp", "", "192.0.2.1:"+port, time.Second); err == nil {
				c.Close()
				t.Errorf("%s is served at port %s although an address is missing", ns.Name(), port)
			}
		}
	}
	first.ns.Addr(t, "hstunnel", "10.74.1.9/32")
	testnet.Eventually(t, patience, "nothing is missing", func() bool {
		return !strings.Contains(state("auto")+state("snat"), "translated") && strings.Contains(state("snat"), `"state": "Ready"`)
	})
	for _, ns := range []*testnet.NS{first.ns, outside} {
		for _, port := range []string{"80", "81"} {
			if name, err := testtraffic.TalkTCP(ns, "", "192.0.2.1:"+port, []byte("a question")); err != nil || name != "pod2" {
				t.Errorf("%s at port %s: %q %v", ns.Name(), port, name, err)
			}
		}
	}
}
