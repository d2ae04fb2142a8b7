// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"net/netip"
	"time"
)

// change is an operator's change to the kernel, with the commands that undo it.
type change struct {
	name     string
	do, undo string // shell commands; do can be repeated after undo
	needs    string // a command that fails if the kernel cannot do this; empty: none
	// own is an address that the node gets and loses. Until the daemon has followed, packets from an
	// address that the node has just lost are dropped, as packets with the node's own address.
	own netip.Addr
}

// settling is how long a change may take to reach the fast path: until then each frame that the
// kernel forwards must leave on our side through any port, and after that through the same one.
const settling = time.Second

// changes makes and undoes the given number of changes under traffic.
func (r *rig) changes(all []change, steps int, traffic func(frames int)) {
	r.t.Helper()
	active := map[int]bool{}
	skipped := map[int]bool{}
	for done := 0; done < steps; {
		i := r.rng.IntN(len(all))
		c := all[i]
		if !skipped[i] && c.needs != "" && !active[i] {
			if _, err := r.kernel.node.TryRun("sh", "-ec", script(c.needs)); err != nil {
				r.t.Logf("not here: %s", c.name)
				skipped[i] = true
			}
		}
		if skipped[i] {
			done++ // perhaps none of the changes is possible
			continue
		}
		command, name := c.do, c.name
		if active[i] {
			command, name = c.undo, "undo: "+c.name
		}
		done++
		if _, err := r.kernel.node.TryRun("sh", "-ec", script(command)); err != nil {
			r.t.Logf("not now: %s: %v", name, err)
			continue
		}
		active[i] = !active[i]
		r.own = c.own
		r.settle(name, func() { r.ours.node.Run(r.t, "sh", "-ec", script(command)) }, traffic)
		r.own = netip.Addr{}
		traffic(400)
	}
}

// settle makes a change, and lets both sides adapt to it under traffic.
func (r *rig) settle(name string, do func(), traffic func(frames int)) {
	r.t.Helper()
	r.last = name
	r.t.Logf("#%d %s", r.sent, name)
	do()
	begin := time.Now()
	r.lenient, r.unequal = true, time.Time{}
	const batches = 60 // independent of time, so that a seed repeats them
	for i := range batches {
		traffic(16)
		time.Sleep(time.Until(begin.Add(settling * time.Duration(i+1) / batches)))
	}
	r.lenient = false
	took := max(0, r.unequal.Sub(begin))
	r.slowest = max(r.slowest, took)
	r.t.Logf("#%d %s: alike after %s", r.sent, name, took.Round(time.Millisecond))
}

// ip is a change that one ip(8) command makes.
func ip(name, do, undo string) change {
	return change{name: name, do: "ip " + do, undo: "ip " + undo}
}

// networkUp sets up a network of the router, whatever parts of it exist.
func networkUp(n int) string {
	batch := fmt.Sprintf("link set %s up\n", port(n))
	for _, v6 := range []bool{false, true} {
		bits := map[bool]int{false: 26, true: 64}[v6]
		more := map[bool]string{true: " nodad"}[v6]
		batch += fmt.Sprintf("address replace %s/%d dev %s%s\n", host(n, 1, v6), bits, port(n), more)
		for i := 2; i < 2+hostCount; i++ {
			batch += fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent\n", host(n, i, v6), text(hostMAC(n, i)), port(n))
		}
	}
	batch += fmt.Sprintf("route replace 198.18.%d.0/24 via %s\n", n+1, host(n, 2, false))
	batch += fmt.Sprintf("route replace 2001:db8:%d00::/48 via %s\n", n+1, host(n, 2, true))
	return "ip -batch - <<END\n" + batch + "END\n"
}

// routerChanges are changes to the path of packets through the router.
func (r *router) routerChanges() []change {
	a, b := r.rng.IntN(portCount), r.rng.IntN(portCount)
	v4, v6 := fmt.Sprintf("198.18.%d.0/24", a+1), fmt.Sprintf("2001:db8:%d00::/48", a+1)
	own := ip("an address of the node's", fmt.Sprintf("address add %s/32 dev lo", host(a, 4, false)), fmt.Sprintf("address del %s/32 dev lo", host(a, 4, false)))
	own.own = host(a, 4, false)
	all := []change{
		ip("route by another neighbour", fmt.Sprintf("route replace %s via %s", v4, host(a, 3, false)), fmt.Sprintf("route replace %s via %s", v4, host(a, 2, false))),
		ip("IPv6 route by another port", fmt.Sprintf("route replace %s via %s", v6, host(b, 4, true)), fmt.Sprintf("route replace %s via %s", v6, host(a, 2, true))),
		ip("longer prefix by another port", fmt.Sprintf("route add 198.18.%d.0/25 via %s", a+1, host(b, 5, false)), fmt.Sprintf("route del 198.18.%d.0/25", a+1)),
		ip("blackhole", fmt.Sprintf("route add blackhole 198.18.%d.64/26", a+1), fmt.Sprintf("route del blackhole 198.18.%d.64/26", a+1)),
		ip("unreachable IPv6", fmt.Sprintf("-6 route add unreachable 2001:db8:%d00::/64", a+1), fmt.Sprintf("-6 route del unreachable 2001:db8:%d00::/64", a+1)),
		ip("route with an MTU", fmt.Sprintf("route replace %s via %s mtu lock 1000", v4, host(a, 2, false)), fmt.Sprintf("route replace %s via %s", v4, host(a, 2, false))),
		own,
		ip("MTU", fmt.Sprintf("link set %s mtu 1290", port(b)), fmt.Sprintf("link set %s mtu 1500", port(b))),
		ip("rule by source", fmt.Sprintf("rule add from %s lookup 100\nip route replace default via %s table 100", v4, host(b, 6, false)), fmt.Sprintf("rule del from %s lookup 100", v4)),
		ip("IPv6 rule by source", fmt.Sprintf("-6 rule add from %s lookup 100\nip -6 route replace default via %s table 100", v6, host(b, 6, true)), fmt.Sprintf("-6 rule del from %s lookup 100", v6)),
		{name: "link down", do: "ip link set " + port(b) + " down", undo: networkUp(b)},
		{name: "address removed", do: fmt.Sprintf("ip address del %s/26 dev %s", host(b, 1, false), port(b)), undo: networkUp(b)},
		{name: "no forwarding", do: "echo 0 >/proc/sys/net/ipv4/ip_forward", undo: "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{name: "no IPv6 forwarding", do: "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", undo: "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"},
		{name: "nft drop", do: "nft 'add table inet t; add chain inet t f { type filter hook forward priority 0; }; add rule inet t f udp dport 0-30000 drop'", undo: "nft delete table inet t", needs: "nft list tables"},
		{name: "nft drop before routing", do: "nft 'add table ip n; add chain ip n f { type filter hook prerouting priority -100; }; add rule ip n f ip daddr " + v4 + " drop'", undo: "nft delete table ip n", needs: "nft list tables"},
	}
	for i := range 3 {
		n, h := r.rng.IntN(portCount), 2+r.rng.IntN(hostCount)
		v6 := i == 2
		all = append(all, ip("neighbour moves",
			fmt.Sprintf("neighbour replace %s lladdr 02:44:55:66:99:%02x dev %s nud permanent", host(n, h, v6), h, port(n)),
			fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent", host(n, h, v6), text(hostMAC(n, h)), port(n))))
	}
	return all
}

// bridgeChanges are changes to the path of frames through the bridge.
func (b *bridge) bridgeChanges() []change {
	p, q := b.rng.IntN(portCount), b.rng.IntN(portCount)
	s := b.stations[b.rng.IntN(len(b.stations))]
	all := []change{
		{name: "isolated", do: "bridge link set dev " + port(p) + " isolated on\nbridge link set dev " + port(q) + " isolated on", undo: "bridge link set dev " + port(p) + " isolated off\nbridge link set dev " + port(q) + " isolated off"},
		ip("link down", "link set "+port(p)+" down", "link set "+port(p)+" up"),
		ip("MTU", "link set "+port(q)+" mtu 1400", "link set "+port(q)+fmt.Sprintf(" mtu %d", b.mtu(q))),
		{name: "static station", do: "bridge fdb replace " + text(s.mac) + " dev " + port(q) + " master static", undo: "bridge fdb del " + text(s.mac) + " dev " + port(q) + " master"},
		{name: "no learning", do: "bridge link set dev " + port(p) + " learning off", undo: "bridge link set dev " + port(p) + " learning on"},
		{name: "port blocked", do: "bridge link set dev " + port(q) + " state 4", undo: "bridge link set dev " + port(q) + " state 3"},
		ip("port leaves", "link set "+port(q)+" nomaster", "link set "+port(q)+" master br0"),
		{name: "hairpin", do: "bridge link set dev " + port(p) + " hairpin on", undo: "bridge link set dev " + port(p) + " hairpin off"},
	}
	if b.jumbo == 0 { // the kernel's rules do not recognise jumbo frames that are in pieces
		all = append(all, change{
			name: "nft drop", do: "nft 'add table bridge t; add chain bridge t f { type filter hook forward priority 0; }; add rule bridge t f meta l4proto udp drop'",
			undo: "nft delete table bridge t", needs: "nft 'add table bridge x; delete table bridge x'",
		})
	}
	if b.filtering {
		v := vlans[b.rng.IntN(len(vlans))]
		all = append(all,
			change{name: "VLAN leaves", do: fmt.Sprintf("bridge vlan del dev %s vid %d", port(p), v), undo: b.ports[p].commands(port(p), true)},
			change{name: "another PVID", do: fmt.Sprintf("bridge vlan add dev %s vid %d pvid untagged", port(p), v), undo: b.ports[p].commands(port(p), true)},
			change{name: "no filtering", do: "ip link set br0 type bridge vlan_filtering 0", undo: "ip link set br0 type bridge vlan_filtering 1"})
	}
	return all
}
