// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// readTables reads which addresses and ports the tables contain.
func (p *Policies) readTables() error {
	clear(p.addrs)
	clear(p.ports)
	return p.eachEntry(
		func(addr kernel.Addr, v kernel.PolicyAddr) { p.addrs[addr.Addr()] = v },
		func(port kernel.PolicyPortID, v kernel.PolicyPort) { p.ports[port] = v },
	)
}

func (p *Policies) eachEntry(addr func(kernel.Addr, kernel.PolicyAddr), port func(kernel.PolicyPortID, kernel.PolicyPort)) error {
	err := p.Tables.PolicyAddr.Batches(func(keys []kernel.Addr, values []kernel.PolicyAddr) error {
		for i, key := range keys {
			addr(key, values[i])
		}
		return nil
	})
	return errors.Join(err, p.Tables.PolicyPort.Batches(func(keys []uint32, values []kernel.PolicyPort) error {
		for i, key := range keys {
			port(kernel.PolicyPortID(key), values[i])
		}
		return nil
	}))
}

// Verify implements [datapath.Table]. After an external change, the next update writes all.
func (p *Policies) Verify(context.Context, datapath.SetName) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	word, err := p.readWord()
	if err != nil || p.image == nil && p.adopted == nil || word != p.word {
		return false, err
	}
	var id ebpf.MapID
	if err := p.Maps[sizes[p.word&policyImage-1].name].Lookup(uint32(p.setInForce()), &id); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if id != p.inForceID {
		return false, p.SetInUse(true)
	}
	same, err := p.holds()
	if err == nil && same {
		same, err = p.domains.holds()
	}
	if err == nil && !same {
		p.drop()
		err = errors.Join(p.readTables(), p.domains.adopt())
	}
	if err == nil && same {
		err = p.record()
	}
	return same, errors.Join(err, p.SetInUse(true))
}

// holds reports whether the tables contain the addresses and ports that this run wrote.
func (p *Policies) holds() (same bool, err error) {
	addrs, ports := len(p.addrs), len(p.ports)
	same = true
	err = p.eachEntry(
		func(addr kernel.Addr, v kernel.PolicyAddr) {
			was, known := p.addrs[addr.Addr()]
			same = same && known && was == v
			addrs--
		},
		func(port kernel.PolicyPortID, v kernel.PolicyPort) {
			was, known := p.ports[port]
			same = same && known && was == v
			ports--
		},
	)
	return same && addrs == 0 && ports == 0, err
}
