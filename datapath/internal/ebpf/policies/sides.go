// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

const noClass = ^uint32(0) // POLICY_NO_CLASS

// noAddr is the value of an address that no Entity has, on both sides.
var noAddr = kernel.PolicyAddr{Class: [2]uint32{noClass, noClass}}

// writeAddrs writes a side of the addresses: what a change says, otherwise what the other side
// contains.
func (p *Policies) writeAddrs(side int, c *policy.Change) error {
	uneven := make(map[netip.Addr]bool)
	write := func(addr netip.Addr, class uint32, port kernel.PolicyPortID) error {
		was, known := p.addrs[addr]
		if !known {
			was = noAddr
		}
		v := was
		v.Class[side], v.Port[side] = class, uint32(port)
		if v.Class[0] != v.Class[1] || v.Port[0] != v.Port[1] {
			uneven[addr] = true
		}
		switch {
		case v == noAddr:
			if err := p.Tables.PolicyAddr.Delete(kernel.AddrOf(addr)); err != nil {
				return fmt.Errorf("address %s of policies: %w", addr, err)
			}
			delete(p.addrs, addr)
			return nil
		case v == was && known:
			return nil
		}
		if err := p.Tables.PolicyAddr.Put(kernel.AddrOf(addr), v); err != nil {
			return fmt.Errorf("address %s of policies: %w", addr, kernel.TableError("entities", err))
		}
		p.addrs[addr] = v
		return nil
	}
	// Addresses that are no longer needed first, since that makes room.
	for addr := range p.uneven {
		if _, changes := c.Addrs[addr]; changes {
			continue
		}
		v := p.addrs[addr]
		class, port := v.Class[1-side], kernel.PolicyPortID(v.Port[1-side])
		if _, has := p.names[addr]; !has {
			class, port = noClass, 0
		}
		if err := write(addr, class, port); err != nil {
			return err
		}
	}
	for _, addr := range c.LostAddrs {
		if err := write(addr, noClass, 0); err != nil {
			return err
		}
	}
	for addr, x := range c.Addrs {
		if err := write(addr, uint32(x.Class), p.portOf[x.Endpoint]); err != nil {
			return err
		}
	}
	p.uneven = uneven
	return nil
}

// writePorts writes a side of the ports of Endpoints.
func (p *Policies) writePorts(side int) error {
	wanted := make(map[kernel.PolicyPortID]kernel.PolicyPort, len(p.subjects))
	for _, s := range p.subjects {
		port, found := p.portOf[s.Endpoint]
		if !found {
			continue
		}
		v := p.ports[port]
		for direction, id := range s.Tables {
			v.Table[side][direction] = 0
			if id != policy.NoTable {
				v.Table[side][direction] = uint32(p.image.tables[id].at / 4)
			}
		}
		v.Network[side] = networkNumber(s.Network)
		if v != (kernel.PolicyPort{}) {
			wanted[port] = v
		}
	}
	for port, was := range p.ports {
		if _, wants := wanted[port]; wants {
			continue
		}
		v := was
		v.Table[side], v.Network[side] = [2]uint32{}, 0
		if v == (kernel.PolicyPort{}) {
			if err := p.Tables.PolicyPort.Delete(uint32(port)); err != nil {
				return fmt.Errorf("port %d of policies: %w", port.Ifindex(), err)
			}
			delete(p.ports, port)
			continue
		}
		wanted[port] = v
	}
	for port, v := range wanted {
		if was, known := p.ports[port]; known && was == v {
			continue
		}
		if err := p.Tables.PolicyPort.Put(uint32(port), v); err != nil {
			return fmt.Errorf("port %d of policies: %w", port.Ifindex(), kernel.TableError("connections", err))
		}
		p.ports[port] = v
	}
	return nil
}
