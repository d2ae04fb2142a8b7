// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/loxilight/loxilight/api"

// schemas show every field of a kind, as a document that apply takes.
var schemas = map[string]string{
	api.KindService: `kind: Service
name: web                     # a-z, 0-9 and - . / : inside; unique among Services
labels: {team: web}           # for llcli get -l; they mean nothing to the daemon
spec:
  frontends:                  # what clients connect to: address:port/protocol
    - 198.51.100.10:80/tcp    # protocol: tcp, udp or sctp
    - "[2001:db8::10]:80/tcp"
  backends:                   # each serves the frontends of its own address family
    - address: 10.0.1.2:8080
      weight: 1               # share of new connections, 0 to 65535; 0: none
      state: active           # draining: keeps its connections, gets no new ones
                              # down: as draining, and UDP connections end at once
    - address: "[2001:db8:1::2]:8080"
  algorithm: maglev           # or random, round-robin, least-connections, source-hash
  affinity:                   # absent: none
    timeout: 3h               # since the client's last new connection, 1s to 24h
  source: auto                # the client's address as backends see it: keep, snat, or
                              # auto: snat where the answers would not come back this way
  sourceRanges:               # clients let in; empty: all
    - 203.0.113.0/24
  health:                     # absent: backends are not checked
    type: http                # tcp, http, https or ping
    path: /healthz            # http and https; default /
    port: 8080                # default: the backend's
    interval: 5s
    timeout: 1s
    healthy: 2                # successes in a row
    unhealthy: 3              # failures in a row
  idleTimeout:                # connections that carry nothing for so long end
    tcp: 2h
    udp: 30s
    sctp: 2h
  noBackend: reject           # what new connections meet without a backend; or drop
  divert:                     # clients that are served as another Service's
    - sources: [10.0.0.0/8]
      service: web-internal
  announce: true              # answer neighbours, by the uplinks, for the frontends' addresses
  otherPorts: pass            # what becomes of packets to these addresses that are no
                              # Service's: or reject (default with announce), drop
`,
	api.KindInterface: `kind: Interface
name: eth0                    # a-z, 0-9 and - . / : inside; unique among Interfaces
labels: {team: net}           # for llcli get -l; they mean nothing to the daemon
spec:
  device: eth0                # the Linux device that the data plane attaches to
  netns: host                 # where it is: host, or switch: the switch's namespace
  role: uplink                # or port, host, tunnel
  xdp: off                    # or generic, native
---
kind: Interface
name: uplink
spec:
  address: 192.0.2.7          # instead of device: the one that has this address
`,
}
