// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
)

// listOf returns the given number of JSON values, separated by commas.
func listOf(count int, value func(i int) string) string {
	var b strings.Builder
	for i := range count {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(value(i))
	}
	return b.String()
}

// longAddress returns an IPv6 address whose text has the maximum length of 39 characters.
func longAddress(i int) string {
	return fmt.Sprintf("2001:1db8:ffff:ffff:ffff:ffff:%x:%x", 0x1000+i>>12, 0xf000|i&0xfff)
}

func longPrefix(i int) string { return `"` + longAddress(i) + `/128"` }

// longService returns a Service with the given numbers of backends and frontends, each with the
// longest possible text.
func longService(backends, frontends int) string {
	return `{"kind":"Service","name":"big","spec":{"health":{"type":"tcp"},"frontends":[` +
		listOf(frontends, func(i int) string { return `"[` + longAddress(1<<20+i) + `]:65535/sctp"` }) + `],"backends":[` +
		listOf(backends, func(i int) string {
			return `{"address":"[` + longAddress(i) + `]:65535","weight":65535,"state":"draining"}`
		}) + `]}}`
}

// shortService returns a Service whose backends have the shortest possible text: its status and
// counters are much longer than its spec.
func shortService(backends int) string {
	return `{"kind":"Service","name":"big","spec":{"health":{"type":"tcp"},"frontends":["1.1.1.1:1/udp"],"backends":[` +
		listOf(backends, func(i int) string { return fmt.Sprintf(`{"address":"9.%d.%d.%d:1"}`, i>>16, i>>8&255, i&255) }) + `]}}`
}

// growing contains, for each object that can be large, the number of elements that docs/api.md
// promises, and a function that returns the object with a given number of elements.
var growing = map[string]struct {
	kind     string
	promised int
	object   func(n int) string
}{
	"Service":                      {api.KindService, 5000, func(n int) string { return longService(n, 100) }},
	"Service with short addresses": {api.KindService, 5000, shortService},
	"Service with source ranges": {api.KindService, 20_000, func(n int) string {
		return `{"kind":"Service","name":"big","spec":{"frontends":["[2001:db8::1]:80/tcp"],"sourceRanges":[` + listOf(n, longPrefix) + `]}}`
	}},
	"AddressGroup": {api.KindAddressGroup, 20_000, func(n int) string {
		return `{"kind":"AddressGroup","name":"big","spec":{"members":[` + listOf(n, longPrefix) + `]}}`
	}},
	"AddressGroup of ranges": {api.KindAddressGroup, 12_000, func(n int) string {
		return `{"kind":"AddressGroup","name":"big","spec":{"members":[` + listOf(n, func(i int) string {
			return `"` + longAddress(2*i) + "-" + longAddress(2*i+1) + `"`
		}) + `]}}`
	}},
	"FirewallRule": {api.KindFirewallRule, 20_000, func(n int) string {
		return `{"kind":"FirewallRule","name":"big","spec":{"action":"deny","match":{"source":[` + listOf(n, longPrefix) + `]}}}`
	}},
	"NAT": {api.KindNAT, 20_000, func(n int) string {
		return `{"kind":"NAT","name":"big","spec":{"type":"snat","match":{"source":[` + listOf(n/2, longPrefix) + `]},"to":{"addresses":[` +
			listOf(n/2, func(i int) string { return `"` + longAddress(1<<20+i) + `"` }) + `]}}}`
	}},
	"Peer": {api.KindPeer, 20_000, func(n int) string {
		return `{"kind":"Peer","name":"big","spec":{"underlay":["2001:db8::2"],"prefixes":[` + listOf(n, longPrefix) + `]}}`
	}},
	"PodNetwork": {api.KindPodNetwork, 20_000, func(n int) string {
		return `{"kind":"PodNetwork","name":"big","spec":{"subnets":["10.244.3.0/24"],"masquerade":{"enabled":true,"except":[` + listOf(n, longPrefix) + `]}}}`
	}},
}

// TestLargestObjects: an object of the size that the documentation promises is accepted, and an
// object of nearly the largest accepted size is returned with its longest status and counters.
func TestLargestObjects(t *testing.T) {
	for name, g := range growing {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			refused := func(n int) string {
				answer := h.ask(admin, "apply", `{"dryRun":true,"objects":[`+g.object(n)+`]}`)
				if strings.HasPrefix(answer, `{"revision"`) {
					return ""
				}
				checkError(t, name, answer, 1, g.kind+"/big", "spec", "at most 1046528 fit")
				return answer
			}
			if answer := refused(g.promised); answer != "" {
				t.Fatalf("%d elements: %s", g.promised, answer)
			}
			var size int // size of an object with twice as many elements, to estimate the maximum
			_, text, _ := strings.Cut(refused(2*g.promised), "takes up ")
			if _, err := fmt.Sscan(text, &size); err != nil {
				t.Fatal(err)
			}
			most := 2 * g.promised * (api.MaxObject - maxRest) / (size - maxRest)
			for refused(most) != "" {
				most -= g.promised / 500
			}
			t.Logf("about %d elements at most", most)
			h.wants(admin, "apply", `{"objects":[`+g.object(most)+`]}`, `"created"`)
			h.longest()
			h.wants(reader, "get", fmt.Sprintf(`{"kind":%q,"name":"big"}`, g.kind), `"status"`)
			h.wants(reader, "get", fmt.Sprintf(`{"kind":%q,"name":"big","revision":1}`, g.kind), `"spec"`)
			h.wants(reader, "list", fmt.Sprintf(`{"kind":%q}`, g.kind), `"status"`)
			if g.kind == api.KindService {
				h.wants(reader, "counters", `{"kind":"Service","name":"big"}`, `{"packets":`)
			}
		})
	}
}

// longest makes the status and the counters of the Service named big as long as possible: each
// backend is unhealthy for a long reason, and its counters have the maximum number of digits.
func (h *harness) longest() {
	var backends []datapath.BackendCounters
	for _, o := range result[api.ListResult](h, "list", `{"kind":"Service"}`).Items {
		for _, b := range strings.Split(string(o.Spec), `{"address":"`)[1:] {
			text, _, _ := strings.Cut(b, `"`)
			addr := netip.MustParseAddrPort(text)
			h.progress.health[addr] = "unhealthy"
			backends = append(backends, datapath.BackendCounters{
				Backend: addr, Connections: math.MaxUint64, Active: math.MaxUint64, Packets: math.MaxUint64, Bytes: math.MaxUint64,
			})
		}
	}
	h.progress.reason = strings.Repeat("<", 1000)
	h.plane.services = map[datapath.ServiceName]datapath.ServiceCounters{"big": {Backends: backends}}
}

// TestMessagesOfManyBackends: if there is no room for the messages of all backends, the first
// backends keep theirs.
func TestMessagesOfManyBackends(t *testing.T) {
	h := newHarness(t)
	h.ask(admin, "apply", `{"objects":[`+shortService(1000)+`]}`)
	h.longest()
	h.progress.reason = "connection refused"
	answer := h.ask(reader, "get", `{"kind":"Service","name":"big"}`)
	if n := strings.Count(answer, "connection refused"); n < 400 || n == 1000 || !strings.Contains(answer, `"1.1.1.1:1/udp"`) {
		t.Errorf("%d backends have a message, want some hundreds", n)
	}
}

// TestLargestInterface: the status of an Interface is bounded, however many addresses its device
// has.
func TestLargestInterface(t *testing.T) {
	h := newHarness(t)
	var labels []string
	for i := range object.MaxLabels {
		labels = append(labels, fmt.Sprintf(`"%03d%s":"%s"`, i, strings.Repeat("<", object.MaxLabelLen-3), strings.Repeat("<", object.MaxLabelLen)))
	}
	h.wants(admin, "apply", `{"objects":[{"kind":"Interface","name":"lo","labels":{`+strings.Join(labels, ",")+`},"spec":{"device":"lo"}}]}`, `"created"`)
	state := datapath.PortState{Index: 1, Device: "lo", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for i := range 50_000 {
		state.Addresses = append(state.Addresses, netip.MustParsePrefix(longAddress(i)+"/128"))
	}
	h.plane.ports = map[datapath.PortName]datapath.PortState{"lo": state}
	h.wants(reader, "get", `{"kind":"Interface","name":"lo"}`, longAddress(maxAddresses-1)+`/128"]`)
}
