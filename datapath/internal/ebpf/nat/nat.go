// SPDX-License-Identifier: Apache-2.0

// Package nat maintains the table of address translation: its rules, and the mappings and blocks of
// ports that the programs create.
package nat

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Table is the table of address translation, which has at most one row. Records of rules are
// written to slots that no rule in force uses, then the images that refer to these slots are
// published. Unused slots are removed a moment later.
type Table struct {
	tables *kernel.Tables
	images natImages
	host   Host
	// Now returns the current tick; tests replace it.
	Now    func() uint32
	logger *slog.Logger

	mu       sync.RWMutex
	ids      map[datapath.NATName]uint16
	names    map[uint16]datapath.NATName
	lastPool uint32
	lastID   uint16
	dead     map[uint16]bool // ids whose entries must be removed
	inForce  bool
	rules    map[uint32]*natRule             // by slot: all to which an image in force may refer
	unclear  bool                            // rules also contains others, because publishing failed
	dirty    bool                            // the tables may hold something else: write everything
	referred map[uint32]bool                 // slots in the images in force, if rules may lack some of them
	old      []natSlot                       // to be removed: no image in force refers to them
	log      map[uint16]bool                 // ids whose mappings are logged
	reported map[translated]datapath.NATName // logged as created but not as deleted; used by passes only
	live     map[uint32]*traffic             // traffic of connections as of the last pass, by id
	closed   map[uint32]*traffic             // traffic of deleted connections, not in a table yet; used by passes only
	last     lastUses                        // likewise: uses of mappings that are not in a table yet
	mappings uint64                          // entries as of the last pass
	empty    int                             // number of passes since a rule or an entry needed them
	blocks   uint64
}

// natImages holds the images of rules in force, like Images in package rules.
type natImages interface {
	PublishAll(sets []kernel.RuleSet, images []*classify.Image) error
	InForce(set kernel.RuleSet) (*classify.Image, error)
	IsEmpty(set kernel.RuleSet) (bool, error)
	Verify(set kernel.RuleSet) (bool, error)
}

// Host is the node whose packets are translated.
type Host interface {
	// DefaultPorts returns the source ports for rules that name none.
	DefaultPorts() ([]datapath.PortRange, error)
	// SetUplinkNames sets the names of uplinks in the rules in force.
	SetUplinkNames(names []string)
	// SetTargetPorts replaces the ports to which rules lead.
	SetTargetPorts(ports *[1 << 16]bool) error
	// SoonOnLoopback attaches the program to the loopback device if it is needed now.
	SoonOnLoopback()
	// LocalAddrs returns the addresses of the devices in the namespaces in use, and these
	// namespaces.
	LocalAddrs() (addrs map[kernel.LocalKey]bool, namespaces map[uint8]bool)
	// Announce replaces the addresses that are announced for the rules in force. ids is keyed by
	// name.
	Announce(rules map[datapath.NATName]datapath.NAT, ids map[datapath.NATName]uint16) error
}

// natSlot identifies the entries of one rule in the tables.
type natSlot struct {
	slot  uint32
	pools []uint32
	pairs []kernel.NatPairKey
}

// natRule is one rule of one set: its match and its translation.
type natRule struct {
	natSlot
	set       kernel.RuleSet
	name      datapath.NATName
	match     datapath.Match
	record    kernel.NatRule
	pool      []kernel.NatPrefix // IPv4 first
	pairAddrs []kernel.NatPrefix // parallel to pairs
	found     bool               // lookups by id find it
}

// The NAT rule sets, in the order in which they are published.
var natSets = [2]kernel.RuleSet{kernel.RulesDNAT, kernel.RulesSNAT}

// Adopt takes over the rules that an earlier run wrote.
func Adopt(t *kernel.Tables, images natImages, host Host, logger *slog.Logger) (*Table, error) {
	n := &Table{
		tables: t, images: images, host: host, logger: logger, Now: kernel.NowTick,
		ids: make(map[datapath.NATName]uint16), names: make(map[uint16]datapath.NATName), dead: make(map[uint16]bool),
		rules: make(map[uint32]*natRule), log: make(map[uint16]bool), closed: make(map[uint32]*traffic), last: make(lastUses),
	}
	if err := n.adopt(); err != nil {
		return nil, fmt.Errorf("take over the translation of an earlier run: %w", err)
	}
	return n, nil
}

func (n *Table) adopt() error {
	if err := n.adoptRules(); err != nil {
		return err
	}
	n.unclear = true
	if err := n.settle(); err != nil {
		return err
	}
	if err := n.host.SetTargetPorts(n.targetPorts()); err != nil {
		return err
	}
	n.inForce = len(n.rules) > 0
	for _, set := range natSets {
		empty, err := n.images.IsEmpty(set)
		if err != nil {
			return err
		}
		n.inForce = n.inForce || !empty
	}
	if !n.inForce {
		n.host.SetUplinkNames(nil)
	}
	return n.adoptNames()
}

// Update implements [datapath.Table].
func (n *Table) Update(_ context.Context, _ datapath.SetName, set datapath.NATSet) error {
	if err := n.update(set); err != nil {
		return err
	}
	n.host.SoonOnLoopback()
	return nil
}

func (n *Table) update(set datapath.NATSet) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := errors.Join(n.settle(), n.dropOld()); err != nil {
		return err
	}
	if err := n.nameAll(set.Rules); err != nil {
		return err
	}
	free, err := n.host.DefaultPorts()
	if err != nil {
		return err
	}
	var sets [2][]*natRule
	var errs error
	for _, name := range sortedNATs(set.Rules) {
		value := set.Rules[name]
		rules, err := compileNAT(name, n.ids[name], &value, free)
		if err != nil {
			errs = errors.Join(errs, &datapath.RuleError{Rule: string(name), Err: err})
			continue
		}
		for i := range sets {
			if rules[i] != nil {
				sets[i] = append(sets[i], rules[i])
			}
		}
	}
	if errs != nil {
		return errs
	}
	if err := n.put(sets, set.Groups); err != nil {
		return err
	}
	n.host.SetUplinkNames(set.Uplinks)
	clear(n.log)
	for name, value := range set.Rules {
		n.log[n.ids[name]] = value.Log
	}
	if err := n.host.Announce(set.Rules, n.ids); err != nil {
		return err
	}
	return n.forget(set.Rules)
}

// Delete implements [datapath.Table].
func (n *Table) Delete(context.Context, datapath.SetName) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.settle(); err != nil {
		return err
	}
	if err := n.put([2][]*natRule{}, nil); err != nil {
		return err
	}
	n.host.SetUplinkNames(nil)
	clear(n.log)
	if err := n.dropOld(); err != nil {
		return err
	}
	if err := n.host.Announce(nil, nil); err != nil {
		return err
	}
	return n.forget(nil)
}

// Keys implements [datapath.Table].
func (n *Table) Keys(context.Context) iter.Seq2[datapath.SetName, error] {
	n.mu.RLock()
	there := n.inForce || n.unclear || len(n.ids)+len(n.dead) > 0
	n.mu.RUnlock()
	return func(yield func(datapath.SetName, error) bool) {
		if there {
			yield(datapath.NodeSet, nil)
		}
	}
}

// HasDNAT reports whether rules in force translate destinations.
func (n *Table) HasDNAT() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.uses(kernel.RulesDNAT)
}

// Entries returns the numbers of mappings and of port blocks as of the last pass.
func (n *Table) Entries() (mappings, blocks uint64) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.mappings, n.blocks
}

// uses reports whether a set has rules.
func (n *Table) uses(set kernel.RuleSet) bool {
	for _, r := range n.rules {
		if r.set == set {
			return true
		}
	}
	return false
}

// Verify implements [datapath.Table].
func (n *Table) Verify(context.Context, datapath.SetName) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ok, err := n.verify()
	n.dirty = n.dirty || !ok
	return ok, err
}

func (n *Table) verify() (bool, error) {
	if n.unclear {
		return false, nil
	}
	for _, set := range natSets {
		check := n.images.IsEmpty
		if n.uses(set) {
			check = n.images.Verify
		}
		if ok, err := check(set); !ok || err != nil {
			return false, err
		}
	}
	for _, r := range n.rules {
		if ok, err := n.holds(r); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// Maintain removes slots that are no longer in use.
func (n *Table) Maintain() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropOld()
}
