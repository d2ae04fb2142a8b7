// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/capacity"
)

// tableOf returns one table of a reply to capacity.
func tableOf(t *testing.T, r *api.CapacityResult, name string) api.TableCapacity {
	t.Helper()
	for _, c := range r.Tables {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no table %q in %+v", name, r.Tables)
	return api.TableCapacity{}
}

// TestCapacityGrowth: the growth of a table and the time until it is full are known after five
// minutes; the health and an event report it in time, and its end.
func TestCapacityGrowth(t *testing.T) {
	h := newHarness(t)
	h.StateDir = t.TempDir()
	start := time.Now().Add(-10 * time.Minute)
	h.filling.warned = map[string]bool{}
	set := func(minute int, used uint64) {
		h.plane.usage = map[string]datapath.Usage{"affinity": {Used: used, Size: 1000}}
		h.recordUsage(start.Add(time.Duration(minute)*time.Minute), h.plane.usage)
	}
	set(0, 100)
	if c := tableOf(t, result[api.CapacityResult](h, "capacity", `{}`), "affinity"); c.Growth5m != nil || c.FullIn != nil || c.Used != 100 || c.Size != 1000 || c.Setting != "tables.affinity" {
		t.Errorf("after one reading: %+v", c)
	}
	for minute := 1; minute <= 10; minute++ {
		set(minute, 100+uint64(minute)*50)
	}
	c := tableOf(t, result[api.CapacityResult](h, "capacity", `{}`), "affinity")
	if c.Growth5m == nil || *c.Growth5m != 250 || c.Growth1h != nil || c.FullIn == nil || time.Duration(*c.FullIn).Round(time.Minute) != 8*time.Minute {
		t.Errorf("after ten minutes: %+v", c)
	}
	health := result[api.StatusResult](h, "status", `{}`).Health
	if health.State != "degraded" || !strings.Contains(health.Messages[0], "table affinity will be full in 8m") {
		t.Errorf("health %+v", health)
	}
	if all := strings.Join(h.events, "\n"); strings.Count(all, `"kind":"Table"`) != 1 || !strings.Contains(all, `"name":"affinity","state":"filling"`) {
		t.Errorf("events: %s", all)
	}
	h.plane.usage = map[string]datapath.Usage{"affinity": {Used: 200, Size: 1000}}
	h.recordUsage(time.Now(), h.plane.usage)
	if health := result[api.StatusResult](h, "status", `{}`).Health; health.State != "ok" {
		t.Errorf("health %+v of a table that shrinks", health)
	}
	if all := strings.Join(h.events, "\n"); !strings.Contains(all, `"name":"affinity","state":"ok"`) {
		t.Errorf("events: %s", all)
	}
}

// TestCapacityOwners: sources, Services, NATs and remote addresses with the most connections, of
// each family, and the objects that fill the other tables.
func TestCapacityOwners(t *testing.T) {
	h := newHarness(t)
	h.StateDir = t.TempDir()
	h.plane.features.SourcePorts = 36_280
	h.plane.usage = map[string]datapath.Usage{"connections IPv4": {Size: 100}, "connections IPv6": {Size: 100}, "backends": {Size: 100},
		"affinity": {}, "natMappings": {}, "natBlocks": {}, "nextHops": {}}
	connect := func(count int, source, to, local string, c datapath.Connection) {
		for i := range count {
			c.Protocol = datapath.UDP
			c.Original = datapath.Tuple{Source: netip.AddrPortFrom(netip.MustParseAddr(source), uint16(i+1)), Destination: netip.MustParseAddrPort(to)}
			c.Reply = datapath.Tuple{Source: netip.MustParseAddrPort(to), Destination: netip.AddrPortFrom(netip.MustParseAddr(local), uint16(i+1))}
			h.plane.connections = append(h.plane.connections, c)
		}
	}
	connect(30, "10.1.0.1", "198.51.100.1:53", "192.0.2.1", datapath.Connection{SNAT: true, NAT: "away"})
	connect(20, "10.1.0.2", "198.51.100.1:53", "192.0.2.1", datapath.Connection{SNAT: true, NAT: "away"})
	connect(10, "10.1.0.3", "198.51.100.2:53", "192.0.2.1", datapath.Connection{SNAT: true, NAT: "away"})
	connect(7, "10.1.0.3", "198.51.100.9:80", "10.1.0.3", datapath.Connection{Service: "web"})
	connect(4, "10.1.0.3", "198.51.100.9:80", "192.0.2.1", datapath.Connection{SNAT: true, Service: "web"})
	connect(9, "10.1.0.3", "198.51.100.3:53", "192.0.2.1", datapath.Connection{SNAT: true, DNAT: true, NAT: "in", NATBack: "PodNetwork/p#ipv4"})
	connect(90, "10.1.0.4", "198.51.100.4:53", "192.0.2.4", datapath.Connection{SNAT: true, NAT: "same-ports"})
	connect(90, "10.1.0.4", "198.51.100.4:53", "192.0.2.5", datapath.Connection{SNAT: true, NAT: "mapped"})
	connect(90, "10.1.0.4", "198.51.100.4:53", "192.0.2.6", datapath.Connection{SNAT: true, NAT: "in-blocks"})
	connect(8, "10.1.0.4", "198.51.100.4:53", "192.0.2.7", datapath.Connection{SNAT: true, NAT: "few-ports"})
	connect(5, "2001:db8:1::1", "[2001:db8:9::1]:80", "2001:db8:1::1", datapath.Connection{Service: "web"})
	connect(6, "2001:db8:1::2", "[2001:db8:9::1]:80", "2001:db8:1::2", datapath.Connection{})
	for _, name := range []string{"small", "large"} {
		backends := `{"address":"10.0.0.1:80"}`
		if name == "large" {
			backends += `,{"address":"10.0.0.2:80"}`
		}
		frontend := fmt.Sprintf("192.0.2.9:%d/tcp", len(name)+int(name[0]))
		result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Service","name":"`+name+`","spec":{"frontends":["`+frontend+`"],"backends":[`+backends+`]}}]}`)
	}
	for name, spec := range map[string]string{
		"same-ports": `{"type":"snat","match":{"source":["10.1.0.0/24"]},"to":{"addresses":["192.0.2.0/24"]},"oneToOne":true}`,
		"mapped":     `{"type":"snat","to":{"addresses":["192.0.2.5"]},"mapping":"endpoint-independent"}`,
		"in-blocks":  `{"type":"snat","to":{"addresses":["192.0.2.6"]},"portBlock":64}`,
		"few-ports":  `{"type":"snat","to":{"addresses":["192.0.2.7"],"ports":["2000-2009"]}}`,
	} {
		result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"NAT","name":"`+name+`","spec":`+spec+`}]}`)
	}
	h.recordUsage(time.Now().Add(-capacity.Short), h.plane.usage)
	r := result[api.CapacityResult](h, "capacity", `{"owners":3}`)
	for table, want := range map[string]string{
		"connections IPv4": "[{source 10.1.0.4 278 false} {source 10.1.0.1 30 false} {source 10.1.0.3 30 false} " +
			"{object NAT/in-blocks 90 false} {object NAT/mapped 90 false} {object NAT/same-ports 90 false}]",
		"connections IPv6": "[{source 2001:db8:1::/64 11 false} {object Service/web 5 false}]",
		"sourcePorts": "[{remote 192.0.2.1 to 198.51.100.1:53/udp 50 false} {remote 192.0.2.1 to 198.51.100.2:53/udp 10 false} " +
			"{remote 192.0.2.1 to 198.51.100.3:53/udp 9 false}]",
		"backends":    "[{object Service/large 2 false} {object Service/small 1 false}]",
		"affinity":    "[{source 10.1.0.1 2 false} {source 2001:db8::/64 1 false} {object Service/web 3 false}]",
		"natMappings": "[{source 10.1.0.1 3 false} {object PodNetwork/p 3 false}]",
		"natBlocks":   "[{source 10.1.0.1 4 false}]",
		"nextHops":    "[{device eth0 in the switch 6 false} {device eth0 5 false}]",
	} {
		c := tableOf(t, r, table)
		slices.SortStableFunc(c.Owners, func(a, b api.TableOwner) int {
			return cmp.Or(-cmp.Compare(a.By, b.By), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Name, b.Name))
		})
		if got := fmt.Sprint(c.Owners); got != want {
			t.Errorf("owners of %s: %s, want %s", table, got, want)
		}
	}
	if c := tableOf(t, r, "backends"); c.Used != 3 || c.Size != 100 || c.Growth5m == nil || *c.Growth5m != 0 {
		t.Errorf("%+v, want what the objects need, now and five minutes ago", c)
	}
	// 8 of 10 are a larger share than 50 of 36,280.
	if c := tableOf(t, r, "sourcePorts"); c.Used != 8 || c.Size != 10 || c.Setting != "NAT spec.to.addresses" {
		t.Errorf("%+v", c)
	}
	all := fmt.Sprint(tableOf(t, result[api.CapacityResult](h, "capacity", `{"owners":100}`), "connections IPv4").Owners)
	if !strings.Contains(all, "{object PodNetwork/p 9 false}") || !strings.Contains(all, "{object NAT/in 9 false}") {
		t.Errorf("owners %s, want the PodNetwork that masquerades", all)
	}
	h.plane.ownersError = errors.New("cannot read the map")
	h.filling.counted = time.Time{}
	if answer := h.ask(admin, "capacity", `{"owners":3}`); !strings.Contains(answer, "cannot read the map") {
		t.Errorf("owners that cannot be read: %s", answer)
	}
	for _, c := range result[api.CapacityResult](h, "capacity", `{}`).Tables {
		if len(c.Owners) > 0 || c.Name == "sourcePorts" {
			t.Errorf("without owners: %+v", c)
		}
	}
	for _, params := range []string{`{"owners":-1}`, `{"owners":101}`} {
		if answer := h.ask(admin, "capacity", params); !strings.Contains(answer, "is not from 0 to 100") {
			t.Errorf("%s: %s", params, answer)
		}
	}
	for _, name := range []string{"memory", "descriptors", "disk"} {
		if c := tableOf(t, r, name); c.Used == 0 || c.Used >= c.Size {
			t.Errorf("%+v", c)
		}
	}
}

// TestCapacityCountedOnce: a count serves later requests for some time, and a client that disconnects
// neither ends it nor waits for it.
func TestCapacityCountedOnce(t *testing.T) {
	h := newHarness(t)
	h.plane.connections = make([]datapath.Connection, 3)
	gone, disconnect := context.WithCancel(t.Context())
	disconnect()
	first, err := h.tally(gone)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if first == nil { // select chose the other case
		first, _ = h.tally(t.Context())
	}
	if again, _ := h.tally(t.Context()); again != first {
		t.Error("connections are counted again at once")
	}
	h.filling.counted = time.Now().Add(-time.Minute)
	h.filling.took = time.Second
	if later, _ := h.tally(t.Context()); later == first {
		t.Error("connections are not counted again after a minute")
	}
	h.filling.counting <- struct{}{} // another client counts
	if _, err := h.tally(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a disconnected client waits: %v", err)
	}
	<-h.filling.counting
}

// TestManyPools: of many address pools, the reply contains the fullest ones.
func TestManyPools(t *testing.T) {
	usage := map[string]datapath.Usage{"affinity": {Size: 5}}
	for i := range 2 * mostPools {
		usage[fmt.Sprintf("%s10.%d.%d.0/24", poolTable, i/256, i%256)] = datapath.Usage{Used: uint64(i % 250), Size: 252}
	}
	leaveOutPools(usage)
	if _, kept := usage["affinity"]; !kept || len(usage) != mostPools+1 {
		t.Errorf("%d tables", len(usage))
	}
	for table, u := range usage {
		if isPool(table) && u.Used < 125 {
			t.Errorf("%s with %d of %d is kept", table, u.Used, u.Size)
		}
	}
}
