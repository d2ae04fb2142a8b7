// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
)

var _ datapath.NetworkLister = (*Network)(nil)

// The origins of entries for which the kernel reports no protocol name.
const (
	originOurs   = "loxilight"
	originKernel = "kernel"
	originOther  = "other"
)

// List implements [datapath.NetworkLister].
func (n *Network) List(_ context.Context, v datapath.NetworkView, inSwitch bool, skip, limit int) ([]datapath.NetworkEntry, bool, error) {
	// A separate handle, because the one in use may be released in the meantime.
	name := ""
	if inSwitch {
		if name = n.cfg.SwitchNamespace; n.isHost() {
			return nil, false, nil
		}
	}
	s, err := n.openForListing(name)
	if errors.Is(err, datapath.ErrAbsent) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	p := &page{n: n, s: s, skip: skip, limit: limit}
	links, err := s.Links()
	if err != nil {
		return nil, false, err
	}
	p.links = make(map[int]netlink.Link, len(links))
	for _, l := range links {
		p.links[l.Attrs().Index] = l
	}
	switch v {
	case datapath.ViewBridges:
		err = p.bridges(links)
	case datapath.ViewFDB:
		err = p.fdb()
	case datapath.ViewNeighbours:
		err = p.neighbours()
	case datapath.ViewRoutes:
		err = p.routes()
	}
	return p.entries, p.more, err
}

// openForListing opens a namespace. The host's is opened by its existing handle, because the thread
// may be in a different namespace.
func (n *Network) openForListing(name string) (*namespace.Handle, error) {
	if name != "" {
		if _, there := namespace.Find(name); !there {
			return nil, absent("network namespace %q", name)
		}
		return namespace.Open(name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.host == nil {
		return nil, errors.New("network: closed")
	}
	return n.host.Duplicate()
}

// page collects the entries of one page.
type page struct {
	n           *Network
	s           *namespace.Handle
	links       map[int]netlink.Link
	skip, limit int
	entries     []datapath.NetworkEntry
	more        bool
}

// full counts one entry, and reports whether it is outside the page; if stop is set, so are all
// later entries.
func (p *page) full() (past, stop bool) {
	if p.skip > 0 {
		p.skip--
		return true, false
	}
	if len(p.entries) >= p.limit {
		p.more = true
		return true, true
	}
	return false, false
}

// name returns the name of the device with this index, or the index itself.
func (p *page) name(index int) string {
	if l := p.links[index]; l != nil {
		return l.Attrs().Name
	}
	if index == 0 {
		return ""
	}
	return strconv.Itoa(index)
}

func (p *page) bridges(links []netlink.Link) error {
	vlans, err := dump.Retry(p.s.Netlink.BridgeVlanList)
	if err != nil {
		return fmt.Errorf("list VLANs: %w", err)
	}
	for _, l := range links {
		b, ok := l.(*netlink.Bridge)
		if !ok {
			continue
		}
		if past, stop := p.full(); stop {
			return nil
		} else if past {
			continue
		}
		a := l.Attrs()
		e := datapath.NetworkEntry{
			Device: a.Name, Origin: originOther, Up: a.Flags&net.FlagUp != 0, MTU: a.MTU, VLANFiltering: filters(b), MAC: a.HardwareAddr,
		}
		if e.Object = p.bridgeObject(a.Name); e.Object != "" && isOurs(p.n.cfg, l) {
			e.Origin = originOurs
		}
		if e.Addresses, err = p.s.Addresses(l); err != nil {
			return err
		}
		for _, port := range links {
			if port.Attrs().MasterIndex == a.Index {
				e.Ports = append(e.Ports, portOf(port, vlans[int32(port.Attrs().Index)]))
			}
		}
		slices.SortFunc(e.Ports, func(a, b datapath.NetworkPort) int { return strings.Compare(a.Device, b.Device) })
		p.entries = append(p.entries, e)
	}
	return nil
}

// bridgeObject returns the name of the object that the device belongs to.
func (p *page) bridgeObject(device string) string {
	j := p.n.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, r := range j.current.Bridges {
		if r.Device == device && r.Space == p.s.ID {
			return name
		}
	}
	return ""
}

func portOf(link netlink.Link, vlans []*nl.BridgeVlanInfo) datapath.NetworkPort {
	p := datapath.NetworkPort{Up: link.Attrs().Flags&net.FlagUp != 0}
	p.Device = link.Attrs().Name
	slices.SortFunc(vlans, func(a, b *nl.BridgeVlanInfo) int { return int(a.Vid) - int(b.Vid) })
	for _, v := range vlans {
		if v.PortVID() {
			p.PVID = v.Vid
		}
		to := &p.VLANs
		if v.EngressUntag() {
			to = &p.Untagged
		}
		if last := len(*to) - 1; last >= 0 && (*to)[last].Last == v.Vid-1 {
			(*to)[last].Last = v.Vid
		} else {
			*to = append(*to, datapath.VLANRange{First: v.Vid, Last: v.Vid})
		}
	}
	return p
}

func (p *page) fdb() error {
	list, err := dump.Retry(func() ([]netlink.Neigh, error) { return p.s.Netlink.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list the FDB: %w", err)
	}
	for _, x := range list {
		if x.MasterIndex == 0 {
			continue // addresses on which the device itself listens
		}
		if past, stop := p.full(); stop {
			return nil
		} else if past {
			continue
		}
		e := datapath.NetworkEntry{
			Device: p.name(x.LinkIndex), Bridge: p.name(x.MasterIndex), MAC: x.HardwareAddr, VLAN: uint16(x.Vlan), State: "learned", Origin: originKernel,
		}
		switch {
		case x.State&unix.NUD_PERMANENT != 0:
			e.State = "local"
		case x.State&unix.NUD_NOARP != 0:
			e.State, e.Origin = "static", originOther
		case x.Flags&unix.NTF_EXT_LEARNED != 0:
			e.Origin = originOther
		}
		p.entries = append(p.entries, e)
	}
	return nil
}

// neighbourStates are the state names of ip neighbour.
var neighbourStates = []struct {
	bit  int
	name string
}{
	{unix.NUD_PERMANENT, "permanent"}, {unix.NUD_REACHABLE, "reachable"}, {unix.NUD_STALE, "stale"}, {unix.NUD_DELAY, "delay"},
	{unix.NUD_PROBE, "probe"}, {unix.NUD_INCOMPLETE, "incomplete"}, {unix.NUD_FAILED, "failed"},
}

func (p *page) neighbours() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := dump.Retry(func() ([]netlink.Neigh, error) { return p.s.Netlink.NeighList(0, family) })
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, x := range list {
			ip, ok := netip.AddrFromSlice(x.IP)
			if !ok || x.State&unix.NUD_NOARP != 0 {
				continue // on links without neighbour resolution
			}
			if past, stop := p.full(); stop {
				return nil
			} else if past {
				continue
			}
			if family == netlink.FAMILY_V4 {
				ip = ip.Unmap()
			}
			e := datapath.NetworkEntry{Device: p.name(x.LinkIndex), Address: ip, MAC: x.HardwareAddr, State: "none", Origin: originKernel}
			for _, state := range neighbourStates {
				if x.State&state.bit != 0 {
					e.State = state.name
					break
				}
			}
			if x.State&unix.NUD_PERMANENT != 0 {
				e.Origin = originOther
			}
			p.entries = append(p.entries, e)
		}
	}
	return nil
}

// routes reads no more than it needs: there may be a million routes.
func (p *page) routes() error {
	begin := *p
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	_, err := dump.Retry(func() (struct{}, error) {
		*p = begin
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			err := p.s.Strict.RouteListFilteredIter(family, filter, netlink.RT_FILTER_TABLE, func(x netlink.Route) bool {
				past, stop := p.full()
				if !past {
					p.entries = append(p.entries, p.routeOf(&x))
				}
				return !stop
			})
			if err != nil || p.more {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	return nil
}

func (p *page) routeOf(x *netlink.Route) datapath.NetworkEntry {
	key, _ := route.KeyOfEntry(x)
	r := &datapath.Route{Prefix: key.Prefix, Metric: key.Metric, MTU: uint32(x.MTU), Type: route.TypeOf(x)}
	r.Source, _ = netip.AddrFromSlice(x.Src)
	r.Source = r.Source.Unmap()
	e := datapath.NetworkEntry{Origin: route.ProtocolName(int(x.Protocol)), MTU: x.MTU, Route: r}
	if r.Type == datapath.RouteUnicast {
		for _, h := range route.HopsOf(x) {
			hop := datapath.NextHop{Device: p.name(h.LinkIndex), Weight: uint16(h.Hops + 1)}
			hop.Via, _ = netip.AddrFromSlice(h.Gw)
			hop.Via = hop.Via.Unmap()
			r.NextHops = append(r.NextHops, hop)
		}
		if len(r.NextHops) == 1 {
			e.Device = r.NextHops[0].Device
		}
	}
	if x.Protocol == namespace.Protocol {
		e.Object, _ = p.n.journal.holder(routeRecord{Space: p.s.ID, Key: key})
	}
	return e
}
