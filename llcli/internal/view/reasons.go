// SPDX-License-Identifier: Apache-2.0

package view

import (
	"regexp"
	"strings"
	"sync"

	"github.com/loxilight/loxilight"
)

// reason is an enumerator of ebpf-src/drop.h with the comment above it.
var reason = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)\t/\* (.*?)\s*\*/\n\t([A-Z_]+),\n`) })

// reasons returns the reasons of ebpf-src/drop.h whose names begin with prefix, in the order of
// that file.
func reasons(prefix string, advice map[string]string) (all []word) {
	for _, m := range reason().FindAllStringSubmatch(loxilight.DropReasons, -1) {
		name, ok := strings.CutPrefix(m[2], prefix)
		if !ok {
			continue
		}
		name = strings.ToLower(name)
		meaning := strings.ReplaceAll(m[1], "\n\t * ", " ")
		all = append(all, word{name, meaning, advice[name]})
	}
	return all
}

// finding is a row of docs/findings.md: a name, its meaning, and when --fix repairs it.
var finding = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| (.*?)(; \\*repaired(.*)\\*)? \\|$")
})

// findings returns the findings of docs/findings.md.
func findings() (all []word) {
	for _, m := range finding().FindAllStringSubmatch(loxilight.Findings, -1) {
		w := word{name: m[1], meaning: m[2]}
		if m[3] != "" {
			w.advice = "llcli doctor --fix repairs it" + m[4]
		}
		all = append(all, w)
	}
	return all
}

// dropAdvice says what to do when packets are dropped, by reason.
var dropAdvice = map[string]string{
	"no_backend":          "llcli service show NAME: are all backends draining, down, unhealthy, or of the other address family?",
	"no_backend_limited":  "the same as for no_backend; the clients see a timeout instead of an error",
	"source_range":        "llcli service show NAME shows them; llcli events drops shows the clients",
	"no_port":             "add backends or node addresses, or use source: keep if the backends route back through this node; if llcli status shows natMappings or natBlocks as full, raise tables.connections",
	"no_address":          "give the device towards the backend an address of the backend's family",
	"table_full":          "llcli status shows how full the table of connections is; tables.connections in the daemon's configuration sets its size",
	"no_route":            "ip route get BACKEND",
	"rewrite":             "the packet is damaged, or loxilight has a bug: llcli events drops shows such packets; please report them",
	"too_big":             "nothing, if path MTU discovery works: the sender then sends smaller packets",
	"too_big_limited":     "the sender tries again and gets the error then",
	"firewall":            "llcli counters FirewallRule NAME, or llcli events drops, which names the rule",
	"firewall_limited":    "the same as for firewall",
	"fragment":            "the sender should use path MTU discovery instead of fragments",
	"unclear":             "llcli events drops shows such packets: check their sender",
	"no_connection":       "nothing, if there are few of them",
	"ttl":                 "nothing, for a traceroute; else look for a routing loop",
	"ttl_limited":         "the same as for ttl",
	"spoofed":             "llcli events drops, which names the Endpoint: check what runs in it, and whether it has addresses that its object lacks",
	"no_mapping":          "nothing, unless a host behind the NAT should be reachable: then add a NAT of type dnat",
	"tunnel_unknown_peer": "llcli events drops shows the address: is an underlay address of a Peer missing?",
	"tunnel_source":       "llcli get peers: is a prefix missing, or another Peer's?",
	"tunnel_no_peer":      "llcli kernel routes: which route leads to the Tunnel's device and to no Peer?",
	"tunnel_no_route":     "ip route get ADDRESS in the host's namespace",
	"tunnel_malformed":    "check the sender: Peers must route IP through the Tunnel, not bridge frames",
	"tunnel_ecn":          "nothing: the loss signals the congestion to the sender",
	"no_backend_silent":   "the same as for no_backend",
	"no_service":          "llcli events drops shows the port: is a frontend missing?",
	"no_service_limited":  "the same as for no_service",
	"ending":              "nothing: the next packet opens the connection again",
	"tunnel_forged":       "llcli events drops names the sender: see what runs there",
	"tunnel_port":         "if the underlay has several paths, set role: uplink on their Interfaces; else see who sends it",
	"uplink_source":       "llcli events drops names the sender; if the underlay is to route pods, remove tunnel from the Peer",
	"loopback":            "llcli events drops names the device: see who sends it",
	"no_slow_path":        "start loxilightd: it restores its pins",
}

// verdictAdvice says what to do about verdicts, if anything.
var verdictAdvice = map[string]string{
	"over_share": "llcli connections --source ADDRESS shows its connections; tables.connections sets the size of the table",
	"evicted":    "llcli status shows how full the table of connections is; tables.connections in the daemon's configuration sets its size",
}
