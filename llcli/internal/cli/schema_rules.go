// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/loxilight/loxilight/api"

func init() {
	schemas[api.KindBridge] = bridgeSchema
	schemas[api.KindRoute] = routeSchema
	schemas[api.KindTunnel] = tunnelSchema
	schemas[api.KindPeer] = peerSchema
	schemas[api.KindAddressGroup] = groupSchema
	schemas[api.KindFirewallRule] = firewallSchema
	schemas[api.KindNAT] = natSchema
}

const bridgeSchema = `kind: Bridge
name: br0                     # a-z, 0-9 and - . / : inside; unique among Bridges
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  device: br0                 # made in the switch's network namespace
  vlanFiltering: true         # keeps frames apart by VLAN; default false
  addresses:                  # of the bridge device
    - 10.1.0.1/24
    - 2001:db8:1::1/64
  ports:
    - device: hs1
      pvid: 10                # VLAN of frames without a tag; 0: refused. Default: 1 for
                              # a port that names no VLANs, else 0
      vlans: [20, 200-299]    # come and leave with a tag
      untagged: [10]          # leave without a tag; default: the pvid
      isolated: true          # exchanges no frames with other isolated ports
    - device: hs2
  ageing: 5m                  # how long a silent host is remembered, 1s to 168h
  mtu: 1500                   # default: the kernel chooses
`

const routeSchema = `kind: Route
name: branch                  # a-z, 0-9 and - . / : inside; unique among Routes
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  prefix: 10.9.0.0/16         # 0.0.0.0/0 or ::/0: the default route
  netns: switch               # host (default), or switch
  type: unicast               # or blackhole (drop silently), unreachable, prohibit
  via: 10.1.0.254             # the router; or only device: on that link
  device: br0
  metric: 50                  # lower first; default: the kernel's
  source: 10.1.0.1            # address of the node's own packets
  mtu: 1400                   # default: that of the device
---
kind: Route
name: uplinks
spec:
  prefix: ::/0
  nexthops:                   # instead of via and device: several ways
    - via: 2001:db8:1::fe
      device: eth0
      weight: 3               # 1 (default) to 256
    - via: fe80::1
      device: eth1
---
kind: Route
name: behind-node2
spec:
  prefix: 10.99.2.0/24
  peer: node2                 # one more prefix of that Peer; says all the rest
`

const groupSchema = `kind: AddressGroup
name: partners                # a-z, 0-9 and - . / : inside; unique among AddressGroups
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  members:                    # rules refer to them as group:partners
    - 192.0.2.7
    - 198.51.100.0/24
    - 203.0.113.10-203.0.113.20
    - 2001:db8:7::/48         # group:NAME: the members of another group
`

const firewallSchema = `kind: FirewallRule
name: web                     # a-z, 0-9 and - . / : inside; unique among FirewallRules
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  priority: 100               # lower first, then by name; default 1000
  hooks: [forward, input]     # and output; default: all where in and out are known
  match:                      # absent: every packet; of a list one must match, and all fields
    source:                   # addresses, prefixes, ranges, group:NAME, local (the node's)
      - 10.0.0.0/8
      - 192.0.2.10-192.0.2.20
    destination: 198.51.100.10  # a single value needs no list
    protocol: tcp             # udp, sctp, icmp, icmpv6, gre, esp, …, or a number
    ports: [80, 8000-8100]    # with protocol tcp, udp, sctp
    sourcePorts: 1024-65535
    tcpFlags: "syn,!ack"      # with protocol tcp; !: not set
    in: eth0                  # devices
    vlans: [10, 200-299]
    dscp: [ef, 12]
  # A rule sees the source and destination of the client: of a port forward or a Service the
  # address and port before translation.
  action: reject              # allow, deny (drop silently) or reject (drop and answer)
  stateful: true              # answers to what it allows are allowed; default true
  log: true                   # log a sample of matching packets
---
kind: FirewallRule
name: ping
spec:
  match:
    protocol: icmp            # or icmpv6: their types are not the same
    icmp: [echo-request, 3/4] # types by name or number, or type/code
    out: eth1
  action: allow
`

const natSchema = `kind: NAT
name: out                     # a-z, 0-9 and - . / : inside; unique among NATs
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  type: snat                  # or masquerade: the address of the device it leaves by
  priority: 100               # lower first, then by name; default 1000
  match:                      # as of a FirewallRule: llcli explain firewall
    source: 10.0.0.0/8
    out: eth0
  to:
    addresses: 192.0.2.10-192.0.2.20
    ports: 1024-65535         # that source ports are chosen from
  mapping: endpoint-independent            # default address-and-port-dependent
  filtering: address-and-port-dependent    # as in RFC 4787
  portBlock: 512              # ports for each address at a time, 64 to 4096
  log: true                   # an event for each block, or each mapping
---
kind: NAT
name: forward-web
spec:
  type: dnat
  match:
    destination: local        # the node's addresses, also those by DHCP
    in: eth0
    protocol: tcp
    ports: 8000-8009
  to: {addresses: 10.0.0.7, ports: 9000-9009}
---
kind: NAT
name: one-to-one
spec:
  type: snat
  match: {source: 10.0.5.0/28}
  to: {addresses: 192.0.2.16/28}
  oneToOne: true              # as many addresses as the source has, each for one
`
