// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// The tables whose owners a [Tally] finds.
const (
	ConnectionsIPv4 = "connections IPv4"
	ConnectionsIPv6 = "connections IPv6"
	SourcePorts     = "sourcePorts"
)

// counters is the number of counters for each kind of owner. Counts of a million connections are
// too low by at most a million divided by this number.
const counters = 1 << 13

// Tally counts connections, and the entries of other tables that packets fill, by their owners.
type Tally struct {
	ports  func(nat datapath.NATName) int
	tables map[string]*table
	uses   *Top[portUse]
}

// table counts the entries of one table.
type table struct {
	sources *Top[netip.Prefix]
	objects *Top[object]
	devices *Top[string]
}

type object struct{ kind, name string }

// portUse identifies connections that must all have different source ports.
type portUse struct {
	local    netip.Addr // translated source address
	remote   netip.AddrPort
	protocol datapath.Protocol
	nat      datapath.NATName // empty: of a Service
}

// NewTally returns a Tally without connections. ports returns how many source ports a NAT assigns
// for each remote address, and 0 for a NAT that assigns ports in a different way or keeps them; the
// name is empty for Services.
func NewTally(ports func(nat datapath.NATName) int) *Tally {
	return &Tally{ports: ports, tables: make(map[string]*table), uses: NewTop[portUse](counters)}
}

func (t *Tally) table(name string) *table {
	e := t.tables[name]
	if e == nil {
		e = &table{NewTop[netip.Prefix](counters), NewTop[object](counters), NewTop[string](counters)}
		t.tables[name] = e
	}
	return e
}

// from counts entries of a source.
func (e *table) from(source netip.Addr, entries uint64) {
	bits := 32
	if source.Is6() {
		bits = 64
	}
	if prefix, err := source.WithZone("").Prefix(bits); err == nil {
		e.sources.Add(prefix, entries)
	}
}

// of counts entries of objects, and skips objects without a name.
func (e *table) of(entries uint64, objects ...object) {
	for _, o := range objects {
		if o.name != "" {
			e.objects.Add(o, entries)
		}
	}
}

// AddEntries counts entries of a table other than connections.
func (t *Tally) AddEntries(name string, o datapath.Owner, entries uint64) {
	e := t.table(name)
	e.of(entries, object{api.KindService, string(o.Service)}, natObject(o.NAT))
	if o.Source.IsValid() {
		e.from(o.Source.Unmap(), entries)
	}
	switch {
	case o.Device == "":
	case o.InSwitch:
		e.devices.Add(o.Device+" in the switch", entries)
	default:
		e.devices.Add(o.Device, entries)
	}
}

// Add counts a connection; endpoint is the name of the Endpoint that opened it, or empty.
func (t *Tally) Add(c *datapath.Connection, endpoint string) {
	source := c.Original.Source.Addr().Unmap()
	e := t.table(ConnectionsIPv4)
	if source.Is6() {
		e = t.table(ConnectionsIPv6)
	}
	e.from(source, 1)
	e.of(1, object{api.KindService, string(c.Service)}, object{api.KindEndpoint, endpoint}, natObject(c.NAT), natObject(c.NATBack),
		object{api.KindFirewallRule, string(c.Rule)})
	if !c.SNAT || c.Protocol == datapath.ICMP || c.Protocol == datapath.ICMPv6 {
		return
	}
	nat := cmp.Or(c.NATBack, c.NAT) // of two NATs, the destination NAT is first
	if t.ports(nat) > 0 {
		t.uses.Add(portUse{c.Reply.Destination.Addr(), c.Reply.Source, c.Protocol, nat}, 1)
	}
}

// natObject returns the object to which a NAT rule belongs: the NAT with its name, or the PodNetwork
// in the name of a derived rule, PodNetwork/NAME#FAMILY.
func natObject(rule datapath.NATName) object {
	if owner, _, derived := strings.Cut(string(rule), "#"); derived {
		if kind, name, ok := strings.Cut(owner, "/"); ok {
			return object{kind, name}
		}
	}
	return object{api.KindNAT, string(rule)}
}

// SourcePorts returns the use of source ports to the remote address to which the largest share of
// them is in use, and the NAT that assigns them, which is empty for a Service.
func (t *Tally) SourcePorts() (u datapath.Usage, nat datapath.NATName) {
	u.Size = uint64(t.ports(""))
	for _, c := range t.uses.Largest(counters) {
		if size := uint64(t.ports(c.Key.nat)); c.Least*u.Size > u.Used*size {
			u, nat = datapath.Usage{Used: c.Least, Size: size}, c.Key.nat
		}
	}
	return u, nat
}

// Owners returns the largest owners of a table's entries, at most n of each kind.
func (t *Tally) Owners(table string, n int) []api.TableOwner {
	if table == SourcePorts {
		return owners(api.OwnerRemote, t.uses.Largest(n), func(p portUse) string {
			return fmt.Sprintf("%s to %s/%s", p.local, p.remote, p.protocol)
		})
	}
	if e := t.tables[table]; e != nil {
		return e.owners(n)
	}
	return nil
}

func (e *table) owners(n int) []api.TableOwner {
	return slices.Concat(
		owners(api.OwnerSource, e.sources.Largest(n), func(p netip.Prefix) string {
			if p.IsSingleIP() {
				return p.Addr().String()
			}
			return p.String()
		}),
		owners(api.OwnerObject, e.objects.Largest(n), func(o object) string { return o.kind + "/" + o.name }),
		owners(api.OwnerDevice, e.devices.Largest(n), func(device string) string { return device }),
	)
}

func owners[K comparable](by string, all []Count[K], name func(K) string) (list []api.TableOwner) {
	for _, c := range all {
		list = append(list, api.TableOwner{By: by, Name: name(c.Key), Used: c.Least, AtLeast: !c.Exact})
	}
	return list
}

// Objects returns the n objects with the largest counts, the largest first.
func Objects(counts map[string]uint64, n int) (list []api.TableOwner) {
	for name, used := range counts {
		list = append(list, api.TableOwner{By: api.OwnerObject, Name: name, Used: used})
	}
	slices.SortFunc(list, func(a, b api.TableOwner) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(n, len(list))]
}

// Age is how long a [Tally] is used before the connections are counted again, given how long that
// takes: counting takes at most a tenth of the time.
func Age(took time.Duration) time.Duration { return max(time.Second, 9*took) }
