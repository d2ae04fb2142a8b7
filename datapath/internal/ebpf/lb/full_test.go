// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// parse returns parsed values.
func parse[V any](must func(string) V, list ...string) (values []V) {
	for _, s := range list {
		values = append(values, must(s))
	}
	return values
}

// everything returns a service that uses every table. It diverts clients to other, if that is not
// empty.
func everything(vip string, other datapath.ServiceName) datapath.Service {
	v := datapath.Service{
		Affinity: time.Minute, Silent: true, Announce: true, OtherPorts: datapath.OtherPortsReject,
		SourceRanges: parse(netip.MustParsePrefix, "192.0.2.0/24", "203.0.113.0/25", "2001:db8:1::/48"),
	}
	for i, addr := range parse(netip.MustParseAddr, vip, "2001:db8::"+vip) {
		v.Frontends = append(v.Frontends,
			datapath.Frontend{Addr: netip.AddrPortFrom(addr, 80), Protocol: datapath.TCP}, datapath.Frontend{Addr: netip.AddrPortFrom(addr, 80), Protocol: datapath.UDP})
		for n := range 3 {
			b := parse(netip.MustParseAddr, fmt.Sprint("10.0.0.", n+1), fmt.Sprint("fd00::", n+1))[i]
			v.Backends = append(v.Backends, datapath.Backend{Addr: netip.AddrPortFrom(b, 8080), Weight: uint16(n + 1)})
		}
	}
	if other != "" {
		v.Diverts = []datapath.Divert{{Sources: parse(netip.MustParsePrefix, "192.0.2.128/26", "2001:db8:1:7::/64"), Service: other}}
	}
	return v
}

// fill is a table that a test fills with entries of its own.
type fill struct {
	name, config string
	put, remove  func(t *kernel.Tables, n uint32) error
}

const fillID = 1 << 20 // higher than ids that a test uses

var fills = []fill{
	{"Service", "services", func(t *kernel.Tables, n uint32) error {
		return t.Service.Put(kernel.ServiceKey{Port: uint16(n), Proto: 250}, kernel.Service{})
	}, func(t *kernel.Tables, n uint32) error {
		return t.Service.Delete(kernel.ServiceKey{Port: uint16(n), Proto: 250})
	}},
	{"ServiceId", "services", func(t *kernel.Tables, n uint32) error {
		return t.ServiceId.Put(kernel.ServiceIdKey{Id: fillID + n}, kernel.Service{})
	}, func(t *kernel.Tables, n uint32) error { return t.ServiceId.Delete(kernel.ServiceIdKey{Id: fillID + n}) }},
	{"ServiceAddr", "services", func(t *kernel.Tables, n uint32) error {
		return t.ServiceAddr.Put(kernel.Addr{Word: [4]uint32{n + 1}}, 0)
	}, func(t *kernel.Tables, n uint32) error {
		return t.ServiceAddr.Delete(kernel.Addr{Word: [4]uint32{n + 1}})
	}},
	{"ServiceName", "services", func(t *kernel.Tables, n uint32) error {
		return t.ServiceName.Put(fillID+n, kernel.ServiceName{})
	}, func(t *kernel.Tables, n uint32) error { return t.ServiceName.Delete(fillID + n) }},
	{"ServiceStats", "services", func(t *kernel.Tables, n uint32) error {
		return t.ServiceStats.Put(fillID+n, nil)
	}, func(t *kernel.Tables, n uint32) error { return t.ServiceStats.Delete(fillID + n) }},
	{"Divert", "ranges", func(t *kernel.Tables, n uint32) error {
		return t.Divert.Put(kernel.SourceRangeKey{PrefixLen: 32, SetId: fillID + n}, kernel.Divert{})
	}, func(t *kernel.Tables, n uint32) error {
		return t.Divert.Delete(kernel.SourceRangeKey{PrefixLen: 32, SetId: fillID + n})
	}},
	{"SourceRange", "ranges", func(t *kernel.Tables, n uint32) error {
		return t.SourceRange.Put(kernel.SourceRangeKey{PrefixLen: 32, SetId: fillID + n}, 0)
	}, func(t *kernel.Tables, n uint32) error {
		return t.SourceRange.Delete(kernel.SourceRangeKey{PrefixLen: 32, SetId: fillID + n})
	}},
	{"Slot", "backends", func(t *kernel.Tables, n uint32) error {
		return t.Slot.Put(kernel.SlotKey{TableId: fillID + n}, kernel.SlotChunk{})
	}, func(t *kernel.Tables, n uint32) error { return t.Slot.Delete(kernel.SlotKey{TableId: fillID + n}) }},
}

// except fills a table, except for a number of entries, and returns a function that removes the
// entries.
func (f *fill) except(s *faultySite, free int) (remove func()) {
	s.t.Helper()
	s.unchecked = true
	m := s.maps[f.name]
	count := uint32(int(m.MaxEntries()) - m.Len() - free)
	for n := range count {
		if err := f.put(s.tables, n); err != nil {
			s.t.Fatal(err)
		}
	}
	s.unchecked = f.name == "Service" // whose entries are frontends of no service
	return func() {
		s.unchecked = true
		defer func() { s.unchecked = false }()
		for n := range count {
			if err := f.remove(s.tables, n); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// TestFullTables: however little room a table has, an update that needs more fails with an error
// that names the table in the configuration. Other services are not affected. Failed attempts leave
// nothing behind: neither if the update succeeds later, nor if the service is deleted or reverted.
func TestFullTables(t *testing.T) {
	for _, f := range fills {
		t.Run(f.name, func(t *testing.T) {
			for free := 0; ; free++ {
				s := newFaultySite(t, uint64(free))
				s.desired["other"], s.desired["web"] = everything("198.51.100.1", ""), everything("198.51.100.2", "")
				if free%3 == 0 { // web is new
					delete(s.desired, "web")
				}
				s.converge()
				before, had := s.desired["web"]
				entries := (&tablesOfSite{s.tables}).entries()
				remove := f.except(s, free)
				value := everything("198.51.100.3", "other")
				value.SourceRanges, value.Backends = value.SourceRanges[1:], value.Backends[1:]
				err := s.Update(t.Context(), "web", value)
				if err == nil && free > 0 {
					return
				}
				for range 2 {
					if !errors.Is(err, datapath.ErrCapacity) || !strings.Contains(err.Error(), "raise tables."+f.config+" in the configuration") {
						t.Fatalf("with room for %d: %v", free, err)
					}
					for _, frontend := range s.desired["other"].Frontends {
						if e := (&tablesOfSite{s.tables}).entries()[frontend]; e == (kernel.Service{}) || e != entries[frontend] {
							t.Fatalf("with room for %d: frontend %s of the other service: %+v, before %+v", free, frontend, e, entries[frontend])
						}
					}
					err = s.Update(t.Context(), "web", value)
				}
				remove()
				switch s.desired["web"] = value; {
				case free%2 == 0 && had:
					s.desired["web"] = before
				case free%2 == 0:
					delete(s.desired, "web")
				}
				s.converge()
				s.wantSound(fmt.Sprint("with room for ", free))
				s.wantModel(fmt.Sprint("with room for ", free))
			}
		})
	}
}

// TestTooManyBackends: a service with more backends than there are ids is refused. The ids that it
// took are free again after its deletion, once a pass has found no connection to them.
func TestTooManyBackends(t *testing.T) {
	s := newFaultySite(t, 1)
	s.desired["web"] = everything("198.51.100.1", "")
	s.converge()
	big := everything("198.51.100.2", "")
	for i := range 300 {
		big.Backends = append(big.Backends, datapath.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 80), Weight: 1})
	}
	for range 3 {
		if err := s.Update(t.Context(), "big", big); !errors.Is(err, datapath.ErrCapacity) || !strings.Contains(err.Error(), "raise tables.backends") {
			t.Fatalf("error %v, want an error that wraps ErrCapacity", err)
		}
		if ok, err := s.Verify(t.Context(), "web"); !ok || err != nil {
			t.Errorf("the other service: %t, %v", ok, err)
		}
	}
	s.converge() // deletes it
	s.wantModel("deleted")
	big.Backends = big.Backends[:len(big.Backends)-60]
	s.desired["big"] = big
	s.converge()
	s.wantSound("smaller")
	s.wantModel("smaller")
}

// TestLongName: a name that does not fit into the tables is refused: the name of the service, and the
// name of a service to which it diverts clients.
func TestLongName(t *testing.T) {
	s := newFaultySite(t, 1)
	fits := datapath.ServiceName(strings.Repeat("n", len(kernel.ServiceName{}.Name)-1))
	if err := s.Update(t.Context(), fits+"n", everything("198.51.100.1", "")); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("a long name: %v", err)
	}
	if err := s.Update(t.Context(), "web", everything("198.51.100.1", fits+"n")); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("diverted to a long name: %v", err)
	}
	s.desired[fits] = everything("198.51.100.1", "")
	s.converge()
	s.restart()
	s.converge()
	s.wantModel("the longest name")
}
