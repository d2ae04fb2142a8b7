// SPDX-License-Identifier: Apache-2.0

// Package policies writes the tables of network policies, and maintains their row.
package policies

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Options is what Policies need of the rest of the data plane.
type Options struct {
	Tables    *kernel.Tables
	Maps      map[string]*ebpf.Map // of the data plane
	NameGrace time.Duration        // new connections may use an address of a name this long after its TTL
	// Raise causes the connections of ports to be evaluated again.
	Raise func(ports []kernel.PolicyPortID) error
	// Released is called with the addresses that participants elsewhere no longer have: their
	// connections are to end.
	Released func(addrs []netip.Addr)
	// SetInUse is called before policies take effect, and after none does. It may be called again with
	// the same value.
	SetInUse func(inUse bool) error
}

// Policies is the table of network policies, which has one row. It is safe for concurrent use.
//
// A change writes the side that is not in force, and then the word that says which side is. The first
// change of a run, and the one after a change that failed, write all of the image, under the key that
// is not in force; unless an earlier run has put the same state in force.
type Policies struct {
	Options
	specs map[string]*ebpf.MapSpec

	mu       sync.Mutex
	word     uint32        // in force; 0: none
	failed   bool          // the last change is not in force
	recorded uint64        // hash of the state in force and its tables; 0: not recorded
	current  *policy.State // that the image contains
	adopted  *policy.State // in force by the tables of an earlier run; nil: none
	compiler *policy.Compiler
	image    *image // nil: the next change writes all of it
	flipped  time.Time
	unfreed  bool // the compiler has not settled since

	addrs     map[netip.Addr]kernel.PolicyAddr // as in ll_policy_addr
	ports     map[kernel.PolicyPortID]kernel.PolicyPort
	uneven    map[netip.Addr]bool // both sides differ
	node      policy.Class
	names     map[netip.Addr]string     // the Endpoint that has an address
	subjects  map[string]policy.Subject // by name
	inForceID ebpf.MapID
	portOf    map[string]kernel.PolicyPortID // of Endpoints
	ledger    *ledger
	domains   *names
	networks  atomic.Pointer[map[datapath.EndpointName]string] // in which Endpoints learn names
	sweeper   *ebpf.Program                                    // nil: not needed yet
	swept     time.Time
	inForce   *policy.State // nil: none, or an earlier run's
	compiled  *compiled     // adopted, for Verdict; nil: not needed yet
}

var _ datapath.Table[datapath.SetName, *policy.State] = (*Policies)(nil)

// Adopt takes over what an earlier run left in force.
func Adopt(o Options) (*Policies, error) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		return nil, err
	}
	p := &Policies{
		Options: o, specs: make(map[string]*ebpf.MapSpec), addrs: make(map[netip.Addr]kernel.PolicyAddr), ports: make(map[kernel.PolicyPortID]kernel.PolicyPort),
		portOf: make(map[string]kernel.PolicyPortID), ledger: newLedger(o.Tables), domains: newNames(&o),
	}
	for _, size := range sizes {
		p.specs[size.name] = spec.Maps[size.name].InnerMap
	}
	p.place(policy.Here, kernel.PolicyPortHere)
	if err = errors.Join(p.readTables(), p.ledger.adopt(), p.domains.adopt()); err == nil {
		p.word, err = p.readWord()
	}
	if err == nil {
		err = p.readRecord()
	}
	if err == nil {
		err = p.SetInUse(p.word != 0) // the earlier run may have been killed in between
	}
	if err != nil {
		return nil, fmt.Errorf("take over the policies of an earlier run: %w", err)
	}
	return p, nil
}

func (p *Policies) readWord() (uint32, error) {
	var rules kernel.Rules
	err := p.Tables.Rules.Lookup(uint32(kernel.RuleSetRULES_POLICY), &rules)
	return rules.Image, err
}

// Update implements [datapath.Table].
func (p *Policies) Update(_ context.Context, _ datapath.SetName, s *policy.State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if found, err := p.findsInForce(s); found || err != nil {
		p.failed = err != nil
		return err
	}
	return p.update(s)
}

// update writes a state, and puts it in force.
func (p *Policies) update(s *policy.State) error {
	err := p.apply(s)
	if p.failed = err != nil; p.failed {
		p.drop()
	}
	return err
}

// drop makes the next change write all of the image.
func (p *Policies) drop() {
	if p.image != nil {
		p.image.close()
		p.image = nil
	}
}

// apply makes a state take effect.
func (p *Policies) apply(s *policy.State) error {
	p.current = nil
	if err := p.writeRecord(0); err != nil {
		return err
	}
	p.rest()
	var remote []netip.Addr // addresses in force that another run, or a change that failed, may have lost
	isFirst := p.image == nil
	if isFirst {
		remote = p.remoteAddrs()
		if err := p.begin(); err != nil {
			return err
		}
	}
	p.image.numberOf = func(v policy.Verdict, staged bool) (uint32, error) {
		if of := s.Policies[v.Policy]; staged && (of == nil || !of.Staged) {
			return 0, nil
		}
		return p.ledger.number(s, v)
	}
	if err := p.domains.enter(s); err != nil {
		return err
	}
	p.image.nameOf = func(name string) uint32 { return p.domains.numbers[name] }
	change := p.compiler.Apply(s)
	p.unfreed = true
	if err := p.commit(change); err != nil {
		return err
	}
	for _, addr := range remote {
		if _, has := p.names[addr]; !has {
			change.Released = append(change.Released, addr)
		}
	}
	if len(change.Released) > 0 {
		p.Released(change.Released)
	}
	p.current, p.adopted, p.inForce, p.compiled = s, nil, s, nil
	p.noteNetworks(s)
	if isFirst {
		p.ledger.addNames(change.Policies)
	}
	return errors.Join(p.ledger.retire(s, change.Policies), p.domains.retire(s))
}

// remoteAddrs returns the addresses in force that no Endpoint of this node has.
func (p *Policies) remoteAddrs() (list []netip.Addr) {
	for addr, v := range p.addrs {
		if side := p.side(); v.Class[side] != noClass && v.Port[side] == 0 {
			list = append(list, addr)
		}
	}
	return list
}

// commit writes a change, and puts it in force.
func (p *Policies) commit(change *policy.Change) error {
	from := p.side()
	if err := p.image.write(change); err != nil {
		return err
	}
	if err := p.image.writeSide(1-from, from, change); err != nil {
		return err
	}
	p.note(change)
	if err := p.writeAddrs(1-from, change); err != nil {
		return err
	}
	if err := p.writePorts(1 - from); err != nil {
		return err
	}
	if p.word == 0 {
		if err := p.SetInUse(true); err != nil {
			return err
		}
	}
	if err := p.publish(p.image.word(1-from) | p.hereWord(1-from)); err != nil {
		return err
	}
	return p.raise(change.Concerned)
}

// side returns the side in force.
func (p *Policies) side() int {
	if p.word&policySide != 0 {
		return 1
	}
	return 0
}

// hereWord returns POLICY_HERE if policies of a side apply to this node itself.
func (p *Policies) hereWord(side int) uint32 {
	if p.ports[kernel.PolicyPortHere].Table[side] != [2]uint32{} {
		return policyHere
	}
	return 0
}

// rest waits until no packet uses what the last change has replaced, and frees it.
func (p *Policies) rest() {
	if p.image == nil {
		return
	}
	if time.Since(p.flipped) < kernel.Grace {
		kernel.Synchronize()
	}
	if !p.unfreed {
		return
	}
	freed := p.compiler.Settle()
	p.image.settle(freed)
	p.unfreed = false
}

// begin prepares an image from nothing, under the key that is not in force.
func (p *Policies) begin() error {
	kernel.Synchronize()
	set := kernel.RuleSetRULES_POLICY
	if p.word&policyImage != 0 && p.word&policySlot == 0 {
		set = kernel.RuleSetRULES_POLICY_OTHER
	}
	m, err := newMemory(p.Maps, p.specs, set)
	if err != nil {
		return err
	}
	p.image, p.compiler, p.unfreed = newImage(m), policy.NewCompiler(), false
	p.uneven, p.names, p.subjects = make(map[netip.Addr]bool, len(p.addrs)), make(map[netip.Addr]string), make(map[string]policy.Subject)
	for addr := range p.addrs {
		p.uneven[addr] = true
	}
	return nil
}

// note records the Endpoints of a change.
func (p *Policies) note(c *policy.Change) {
	p.node = c.Node
	for addr, x := range c.Addrs {
		p.names[addr] = x.Endpoint
	}
	for _, addr := range c.LostAddrs {
		delete(p.names, addr)
	}
	for name, s := range c.Subjects {
		p.subjects[name] = s
	}
	for _, name := range c.LostNames {
		delete(p.subjects, name)
	}
}

// publish makes a word take effect.
func (p *Policies) publish(word uint32) error {
	if err := kernel.Step("publish policies", func() error { return p.Tables.Rules.Put(uint32(kernel.RuleSetRULES_POLICY), kernel.Rules{Image: word}) }); err != nil {
		return fmt.Errorf("put policies in force: %w", err)
	}
	const image = policyImage | policySlot
	another := word&image != p.word&image
	p.word, p.flipped = word, time.Now()
	if !another {
		return nil
	}
	p.inForceID = 0
	if p.image != nil {
		info, err := p.image.inner.Info()
		if err != nil {
			return err
		}
		p.inForceID, _ = info.ID()
	}
	kernel.Synchronize()
	if p.image == nil {
		return removeOthers(p.Maps, nil)
	}
	return removeOthers(p.Maps, p.image.memory)
}

// raise causes the connections of Endpoints to be evaluated again.
func (p *Policies) raise(endpoints map[string]bool) error {
	var ports []kernel.PolicyPortID
	for name := range endpoints {
		if port, found := p.portOf[name]; found {
			ports = append(ports, port)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	return kernel.Step("raise epoch of ports", func() error { return p.Raise(ports) })
}

// Delete implements [datapath.Table].
func (p *Policies) Delete(context.Context, datapath.SetName) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
	p.current, p.adopted = nil, nil
	if err := p.writeRecord(0); err != nil {
		return err
	}
	if p.word != 0 {
		if err := p.publish(0); err != nil {
			return err
		}
	} else if err := removeOthers(p.Maps, nil); err != nil {
		return err
	}
	for addr := range p.addrs {
		if err := p.Tables.PolicyAddr.Delete(kernel.AddrOf(addr)); err != nil {
			return err
		}
		delete(p.addrs, addr)
	}
	for port := range p.ports {
		if err := p.Tables.PolicyPort.Delete(uint32(port)); err != nil {
			return err
		}
		delete(p.ports, port)
	}
	p.failed, p.inForce = false, nil
	if err := errors.Join(p.ledger.retireAll(), p.domains.retire(&policy.State{})); err != nil {
		return err
	}
	return p.SetInUse(false)
}

// Keys implements [datapath.Table].
func (p *Policies) Keys(context.Context) iter.Seq2[datapath.SetName, error] {
	p.mu.Lock()
	some := p.word != 0 || len(p.addrs) > 0 || len(p.ports) > 0
	p.mu.Unlock()
	return func(yield func(datapath.SetName, error) bool) {
		if some {
			yield(datapath.NodeSet, nil)
		}
	}
}
