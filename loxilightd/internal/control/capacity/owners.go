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

// Tally counts connections by their owners.
type Tally struct {
	ports    func(nat datapath.NATName) int
	families [2]family // IPv4, IPv6
	uses     *Top[portUse]
}

// family counts the connections of one address family.
type family struct {
	sources *Top[netip.Prefix]
	objects *Top[object]
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
	t := &Tally{ports: ports, uses: NewTop[portUse](counters)}
	for i := range t.families {
		t.families[i] = family{NewTop[netip.Prefix](counters), NewTop[object](counters)}
	}
	return t
}

// Add counts a connection; endpoint is the name of the Endpoint that opened it, or empty.
func (t *Tally) Add(c *datapath.Connection, endpoint string) {
	source := c.Original.Source.Addr().Unmap()
	f, bits := &t.families[0], 32
	if source.Is6() {
		f, bits = &t.families[1], 64
	}
	if prefix, err := source.WithZone("").Prefix(bits); err == nil {
		f.sources.Add(prefix, 1)
	}
	for _, o := range []object{
		{api.KindService, string(c.Service)}, {api.KindEndpoint, endpoint},
		natObject(c.NAT), natObject(c.NATBack),
	} {
		if o.name != "" {
			f.objects.Add(o, 1)
		}
	}
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
	switch table {
	case ConnectionsIPv4:
		return t.families[0].owners(n)
	case ConnectionsIPv6:
		return t.families[1].owners(n)
	case SourcePorts:
		return owners(api.OwnerRemote, t.uses.Largest(n), func(p portUse) string {
			return fmt.Sprintf("%s to %s/%s", p.local, p.remote, p.protocol)
		})
	}
	return nil
}

func (f *family) owners(n int) []api.TableOwner {
	list := owners(api.OwnerSource, f.sources.Largest(n), func(p netip.Prefix) string {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String()
	})
	return append(list, owners(api.OwnerObject, f.objects.Largest(n), func(o object) string { return o.kind + "/" + o.name })...)
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
