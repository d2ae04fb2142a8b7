// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/loxilight/loxilight/internal/testnet"
)

// moveAddrs are the addresses of the pod that moves, in the subnets of node 2.
var moveAddrs = [2]netip.Addr{netip.MustParseAddr("10.76.2.100"), netip.MustParseAddr("fd76:2::100")}

// movePatience is the maximum time until all stations reach a pod that has moved: a second, plus a
// margin for a busy machine.
const movePatience = 1500 * time.Millisecond

// mover is a pod that moves between the nodes of a cluster with its addresses.
type mover struct {
	*cluster
	pod   *pod // nil: not attached
	list  *libcni.NetworkConfigList
	on    int // number of its node
	count int // number of pods so far
	asked map[*station]*[2]net.Conn
}

// TestMove: a pod moves to another node with its addresses, and back. Stations that reached it
// before, including pods that know its hardware address, reach it soon after the last step, in any
// order of the steps.
func TestMove(t *testing.T) {
	testnet.RequireRoot(t)
	debian(t, "static")
	vxlan, geneve := clusterKind{tunnel: "vxlan", pods: 1}, clusterKind{tunnel: "geneve", over6: true, pods: 1}
	kinds := []clusterKind{vxlan, geneve}
	if os.Getenv("LOXILIGHT_PODS") != "" { // make matrix: the other kinds take long
		kinds = []clusterKind{{pods: 1}, vxlan, geneve, {tunnel: "vxlan", merged: true, pods: 1}}
	}
	eachKind(t, kinds, func(t *testing.T, c *cluster) {
		m := &mover{cluster: c, asked: map[*station]*[2]net.Conn{}}
		for _, n := range m.nodes {
			if c.merged { // else packets for the roaming pod bypass the switch
				n.node.Sysctl(t, "net.ipv4.conf.all.send_redirects", "0")
				n.node.Sysctl(t, "net.ipv4.conf.hsvlan110.send_redirects", "0")
			}
		}
		for _, s := range m.stations {
			m.asked[s] = m.connect(s)
		}
		m.settle()
		m.attach(2)
		m.reached("at first")
		m.moves(c.clusterKind == geneve)
		m.detach()
		m.nothingLeft()
	})
}

// moves moves the pod to node 3 and back, repeatedly.
func (m *mover) moves(prefixesFirst bool) {
	m.t.Helper()
	for round := range 2 {
		if prefixesFirst {
			m.peers("--add-prefix")
			m.detach()
			m.attach(3)
		} else {
			m.detach()
			m.attach(3)
			m.peers("--add-prefix")
		}
		m.reached(fmt.Sprintf("moved, %d", round))
		m.detach()
		if prefixesFirst {
			m.peers("--remove-prefix")
		}
		m.attach(2)
		if !prefixesFirst {
			m.peers("--remove-prefix")
		}
		m.reached(fmt.Sprintf("back, %d", round))
	}
}

// settle waits until the nodes' new addresses are usable as sources.
func (m *mover) settle() {
	m.t.Helper()
	for _, to := range m.stations {
		if to.kind != aPod {
			continue
		}
		for _, a := range to.addr {
			at := netip.AddrPortFrom(a, matrixPort).String()
			to.ServeUDP(m.t, at, to.name)
			for _, from := range m.stations {
				c, err := from.Dial("udp", "", at, time.Second)
				if err != nil {
					m.t.Fatal(err)
				}
				if _, last := until(c, to.name, time.Now()); strings.HasPrefix(last, "never") {
					m.t.Fatalf("%s does not reach %s: %s", from.name, at, last)
				}
				_ = c.Close() // no longer needed
			}
		}
	}
}

// attach adds the pod to a node as a user does.
func (m *mover) attach(node int) {
	m.t.Helper()
	m.count++
	m.outside(node)
	s := m.nodes[node-1]
	m.on, m.pod = node, s.newPod(fmt.Sprintf("mover-%d", m.count))
	if node == 2 {
		m.list = s.list("1.0.0", nil)
		m.pod.rt.CapabilityArgs = map[string]any{"ips": []string{moveAddrs[0].String(), moveAddrs[1].String()}}
	} else {
		via := [2]string{fmt.Sprintf("10.76.%d.1", node), fmt.Sprintf("fd76:%d::1", node)}
		m.list = s.list("1.0.0", map[string]any{"ipam": map[string]any{
			"type":      "static",
			"addresses": []map[string]any{{"address": moveAddrs[0].String() + "/32"}, {"address": moveAddrs[1].String() + "/128"}},
			"routes": []map[string]any{
				{"dst": via[0] + "/32", "scope": 253}, {"dst": "0.0.0.0/0", "gw": via[0]},
				{"dst": via[1] + "/128", "scope": 253}, {"dst": "::/0", "gw": via[1]},
			},
		}})
	}
	if err := s.tryAdd(m.list, m.pod); err != nil {
		m.t.Fatalf("ADD on node %d: %v", node, err)
	}
	for _, a := range moveAddrs {
		m.pod.ServeUDP(m.t, netip.AddrPortFrom(a, matrixPort).String(), m.name())
	}
}

// outside makes the outside machine route to the node that has the pod. A tunnel accepts packets
// only from pods and nodes.
func (m *mover) outside(node int) {
	m.t.Helper()
	for _, s := range m.stations {
		if s.kind == outside {
			s.Run(m.t, "ip", "route", "replace", moveAddrs[0].String(), "via", fmt.Sprintf("192.0.2.%d", node))
			s.Run(m.t, "ip", "-6", "route", "replace", moveAddrs[1].String(), "via", fmt.Sprintf("2001:db8:2::%d", node))
		}
	}
}

func (m *mover) name() string { return fmt.Sprintf("mover-%d", m.count) }

func (m *mover) detach() {
	m.t.Helper()
	m.nodes[m.on-1].del(m.list, m.pod)
	m.pod = nil
}

// peers adds the addresses to the Peer of node 3 on the other nodes, or removes them.
func (m *mover) peers(flag string) {
	m.t.Helper()
	for _, n := range m.nodes[:2] {
		n.LLCLI("peer", "set", "node3", flag, moveAddrs[0].String()+"/32", flag, moveAddrs[1].String()+"/128")
	}
}

// connect opens the sockets with which a station sends requests to the pod, one for each family.
func (m *mover) connect(s *station) *[2]net.Conn {
	m.t.Helper()
	var conns [2]net.Conn
	for family, a := range moveAddrs {
		c, err := s.Dial("udp", "", netip.AddrPortFrom(a, matrixPort).String(), time.Second)
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { _ = c.Close() }) // the test is over
		conns[family] = c
	}
	return &conns
}

// reached checks that all stations reach the pod at its current location, through an earlier socket
// and through a new one.
func (m *mover) reached(what string) {
	m.t.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	longest := time.Duration(0)
	for _, s := range m.stations {
		fresh := m.connect(s)
		for family := range moveAddrs {
			for how, c := range map[string]net.Conn{"an old socket": m.asked[s][family], "a new socket": fresh[family]} {
				wg.Go(func() {
					took, last := until(c, m.name(), begin)
					mu.Lock()
					defer mu.Unlock()
					if longest = max(longest, took); took > movePatience {
						m.t.Errorf("%s: %s reaches %s by %s after %s; %s", what, s.name, moveAddrs[family], how, took.Round(time.Millisecond), last)
					}
				})
			}
		}
	}
	wg.Wait()
	m.t.Logf("%s: %d stations reach it after %s", what, len(m.stations), longest.Round(time.Millisecond))
}

// until sends requests until the named server answers. It returns the time since begin, and the
// result of the last attempt before that.
func until(c net.Conn, name string, begin time.Time) (took time.Duration, last string) {
	answer := make([]byte, 256)
	last = "at once"
	for took < 15*time.Second {
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond)) // cannot fail
		_, err := c.Write([]byte("where are you?"))
		n := 0
		for err == nil {
			if n, err = c.Read(answer); err == nil && strings.HasPrefix(string(answer[:n]), name+" ") {
				return time.Since(begin), last
			}
		}
		last = fmt.Sprintf("before: %v %q", err, answer[:n])
		if took = time.Since(begin); !strings.Contains(err.Error(), "timeout") {
			time.Sleep(5 * time.Millisecond) // refused, or no route: try again
		}
	}
	return took, "never: " + last
}

// nothingLeft checks that no node has state for the pod, and that no host answers for it.
func (m *mover) nothingLeft() {
	m.t.Helper()
	for i, n := range m.nodes {
		m.t.Run("look", func(t *testing.T) { // closes the namespaces at the end
			spaces := []*testnet.NS{n.node}
			if !m.merged {
				spaces = append(spaces, testnet.Named(t, n.name))
			}
			for _, ns := range spaces {
				for _, family := range []string{"-4", "-6"} {
					if out := ns.Run(t, "ip", family, "route", "show"); strings.Contains(out, "10.76.2.100") || strings.Contains(out, "fd76:2::100") {
						t.Errorf("node %d has routes left:\n%s", i+1, out)
					}
				}
			}
		})
	}
	for _, s := range m.stations {
		if s.kind != aPod || s.node != 2 {
			continue
		}
		c := m.connect(s)
		for _, family := range []string{"ipv4", "ipv6"} { // an entry that no host confirms fails soon
			s.Sysctl(m.t, "net."+family+".neigh.eth0.delay_first_probe_time", "1")
			s.Sysctl(m.t, "net."+family+".neigh.eth0.retrans_time_ms", "250")
		}
		m.t.Cleanup(func() {
			if m.t.Failed() {
				m.t.Log(s.Run(m.t, "ip", "-s", "neigh", "show"))
			}
		})
		testnet.Eventually(m.t, 30*time.Second, "no host answers for the addresses", func() bool {
			for family := range moveAddrs {
				_, _ = c[family].Write([]byte("anybody there?")) // triggers neighbour resolution
			}
			time.Sleep(100 * time.Millisecond) // to run ip less often
			for line := range strings.Lines(s.Run(m.t, "ip", "neigh", "show")) {
				if (strings.HasPrefix(line, moveAddrs[0].String()+" ") || strings.HasPrefix(line, moveAddrs[1].String()+" ")) && strings.Contains(line, "lladdr") {
					return false
				}
			}
			return true
		})
	}
}
