// SPDX-License-Identifier: Apache-2.0

package security

import (
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// macText returns the MAC of a device as text.
func macText(t *testing.T, ns *testnet.NS, device string) string {
	mac := ns.MAC(t, device)
	return net.HardwareAddr(mac[:]).String()
}

// TestS5MACOfTheSwitch: a pod requests one of the switch's MACs, through each of the fields that
// may name a MAC. ADD fails, and other pods still reach the LAN.
func TestS5MACOfTheSwitch(t *testing.T) {
	s := newPodsSite(t)
	victim := s.addPod(nil)
	sw := testnet.Named(t, s.name)
	s.lan.ServeUDP(t, ":7000", "lan")
	macs := map[string]string{
		"the host's end of the link": macText(t, s.node, "loxi_test"), "the switch's end of the link": macText(t, sw, "hs_host"),
		"the bridge": macText(t, sw, "hsvlan110"), "a pod's port": macText(t, sw, "hs1"), "another pod": macText(t, victim.NS, "eth0"),
		"tunnels, destination": "02:4c:4c:00:00:01", "tunnels, source": "02:4c:4c:00:00:02",
	}
	for of, mac := range macs {
		for field, ask := range map[string]func(p *podsPod){
			"runtimeConfig.mac": func(p *podsPod) { p.rt.CapabilityArgs = map[string]any{"mac": mac} },
			"args.cni.mac": func(p *podsPod) {
				p.list = s.list(map[string]any{"args": map[string]any{"cni": map[string]any{"mac": mac}}})
			},
			"CNI_ARGS": func(p *podsPod) { p.rt.Args = append(p.rt.Args, [2]string{"MAC", mac}) },
		} {
			evil := s.newPod(nil)
			ask(evil)
			err := s.tryAdd(evil)
			if cniCode(err) != 7 || !strings.Contains(err.Error(), mac) {
				t.Errorf("MAC of %s by %s: code %d, %v; want code 7", of, field, cniCode(err), err)
			}
			if err == nil {
				for i, host := range []string{"192.0.2.77", "2001:db8:2::77"} {
					answers(evil.NS, host, 7001) // makes the bridge learn
					if got := answers(victim.NS, host, 7000); len(got) == 0 {
						t.Errorf("a pod with the MAC of %s cuts off others (IPv%d)", of, 4+2*i)
					}
				}
			}
			s.del(evil)
		}
	}
	for _, host := range []string{"192.0.2.77", "2001:db8:2::77"} {
		if got := answers(victim.NS, host, 7000); len(got) == 0 {
			t.Errorf("a pod does not reach %s", host)
		}
	}
	free := s.newPod(map[string]any{"mac": "02:11:22:33:44:55"})
	if err := s.tryAdd(free); err != nil || macText(t, free.NS, "eth0") != "02:11:22:33:44:55" {
		t.Errorf("a MAC that is free: %v", err)
	}
}

// TestS5EndpointObjects: an Endpoint object with one of the switch's MACs is rejected or in error,
// and its device does not become a port of the bridge.
func TestS5EndpointObjects(t *testing.T) {
	s := newPodsSite(t)
	s.addPod(nil)
	sw := testnet.Named(t, s.name)
	sw.Run(t, "ip", "link", "add", "vm0", "type", "veth", "peer", "name", "vm1")
	for of, mac := range map[string]string{
		"the host's end of the link": macText(t, s.node, "loxi_test"), "the switch's end of the link": macText(t, sw, "hs_host"),
		"the bridge": macText(t, sw, "hsvlan110"), "a pod's port": macText(t, sw, "hs1"), "tunnels": "02:4c:4c:00:00:01", "its own port": macText(t, sw, "vm0"),
	} {
		file := s.File(fmt.Sprintf("kind: Endpoint\nname: vm\nspec: {device: vm0, addresses: [10.73.3.77], mac: %q, network: default}\n", mac))
		out, code, _ := s.TryLLCLI("apply", "--wait", "2s", "-f", file)
		if code == 0 {
			t.Errorf("an Endpoint with the MAC of %s is Ready:\n%s", of, out)
		}
		if out := sw.Run(t, "ip", "-o", "link", "show", "vm0"); strings.Contains(out, "master") {
			t.Errorf("MAC of %s: the device is a port of the bridge: %s", of, out)
		}
		_, _, _ = s.TryLLCLI("delete", "endpoint", "vm", "--wait", "5s") // there may be none
	}
}

// TestS5FDB: the FDB has static entries for Endpoints and the host that no frame moves, and the
// ports of Endpoints learn nothing, whatever an Endpoint sends, even after an external change, a
// restart, and a move of a MAC to another pod.
func TestS5FDB(t *testing.T) {
	s := newPodsSite(t)
	sw := testnet.Named(t, s.name)
	victim, evil := s.addPod(nil), s.addPod(map[string]any{"mac": "02:11:22:33:44:55"})
	s.lan.ServeUDP(t, ":7000", "lan")
	fdb := func() string { return sw.Run(t, "bridge", "fdb", "show", "br", "hsvlan110") }
	pinned := func(device, mac string) bool {
		for line := range strings.Lines(fdb()) {
			if strings.HasPrefix(line, mac+" dev "+device+" ") && strings.Contains(line, "static") && strings.Contains(line, "sticky") {
				return strings.Contains(device, "host") || strings.Contains(sw.Run(t, "bridge", "-d", "link", "show", "dev", device), "learning off")
			}
		}
		return false
	}
	host, first, second := macText(t, s.node, "loxi_test"), macText(t, victim.NS, "eth0"), macText(t, evil.NS, "eth0")
	asWanted := func(when string) {
		t.Helper()
		for mac, device := range map[string]string{host: "hs_host", first: "hs1", second: "hs2"} {
			testnet.Eventually(t, 10*time.Second, when+": "+mac+" is pinned to "+device, func() bool { return pinned(device, mac) })
		}
		for _, host := range []string{"192.0.2.77", "2001:db8:2::77"} {
			if got := answers(victim.NS, host, 7000); len(got) == 0 {
				t.Errorf("%s: a pod does not reach %s", when, host)
			}
		}
	}
	asWanted("after ADD")

	wire := evil.Wire(t, "eth0")
	before := strings.Count(fdb(), "\n")
	frame := testpkt.Build(testpkt.Ethernet{Destination: [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, Source: s.node.MAC(t, "loxi_test"), Type: 0x88b5}, testpkt.Payload("forged"))
	wire.Send(t, frame)
	for range 5000 {
		if _, err := rand.Read(frame[6:12]); err != nil {
			t.Fatal(err)
		}
		frame[6] &^= 1
		wire.Send(t, frame)
	}
	asWanted("after 5000 forged sources")
	if after := strings.Count(fdb(), "\n"); after > before+10 {
		t.Errorf("the FDB has %d entries after 5000 forged sources, and had %d", after, before)
	}

	sw.Run(t, "bridge", "fdb", "del", first, "dev", "hs1", "master")
	sw.Run(t, "bridge", "link", "set", "dev", "hs2", "learning", "on")
	sw.Run(t, "bridge", "fdb", "del", host, "dev", "hs_host", "master")
	asWanted("after an external change")
	s.Kill()
	sw.Run(t, "bridge", "fdb", "del", first, "dev", "hs1", "master")
	sw.Run(t, "bridge", "fdb", "replace", second, "dev", "hs1", "master", "static")
	s.Start()
	asWanted("after a restart")

	s.del(evil)
	again := s.addPod(map[string]any{"mac": "02:11:22:33:44:55"})
	if got := macText(t, again.NS, "eth0"); got != second {
		t.Fatalf("MAC %s", got)
	}
	asWanted("after the MAC moved to another pod")
}
