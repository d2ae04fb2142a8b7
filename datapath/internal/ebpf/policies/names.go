// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// names numbers the names in rules, so that programs can learn their addresses, and writes the DNS servers
// whose responses are learnt. A name keeps its number while a policy has it, also across restarts. A
// number is not used again.
type names struct {
	tables    *kernel.Tables
	numbers   map[string]uint32
	texts     map[kernel.NameText]kernel.NameIds     // as in ll_name
	resolvers map[kernel.ResolverKey]kernel.Resolver // as in ll_resolver
	graceS    uint32                                 // seconds in which new connections may use an address after its TTL
	known     atomic.Pointer[map[string]uint32]      // a copy of numbers
	last      uint32                                 // the highest number that was used
}

func newNames(o *Options) *names {
	return &names{tables: o.Tables, graceS: uint32(o.NameGrace / time.Second)}
}

// adopt reads what the tables contain.
func (n *names) adopt() error {
	err := n.read()
	// Addresses may be left of names that no policy has any more.
	err = errors.Join(err, n.tables.Learned.Batches(func(keys []kernel.LearnedKey, _ []kernel.Learned) error {
		for i := range keys {
			n.last = max(n.last, keys[i].Name)
		}
		return nil
	}))
	for _, id := range n.numbers {
		err = errors.Join(err, n.start(id))
	}
	if err != nil {
		return fmt.Errorf("names in policies: %w", err)
	}
	n.publish()
	return nil
}

// read reads names and resolvers.
func (n *names) read() error {
	n.numbers, n.texts, n.resolvers = make(map[string]uint32), make(map[kernel.NameText]kernel.NameIds), make(map[kernel.ResolverKey]kernel.Resolver)
	err := n.tables.Name.Batches(func(texts []kernel.NameText, ids []kernel.NameIds) error {
		for i, text := range texts {
			n.texts[text] = ids[i]
			for prefix, id := range map[string]uint32{"": ids[i].Exact, wildcard: ids[i].Below} {
				if id != 0 {
					n.numbers[prefix+nameOf(text)] = id
					n.last = max(n.last, id)
				}
			}
		}
		return nil
	})
	return errors.Join(err, n.tables.Resolver.Batches(func(keys []kernel.ResolverKey, values []kernel.Resolver) error {
		for i, key := range keys {
			n.resolvers[key] = values[i]
		}
		return nil
	}))
}

// publish makes the numbers available to reports.
func (n *names) publish() {
	known := maps.Clone(n.numbers)
	n.known.Store(&known)
}

// start creates the counters of a number, unless they exist.
func (n *names) start(id uint32) error {
	var stats kernel.NameStats
	if found, err := n.tables.NameStats.Find(id, &stats); found || err != nil {
		return err
	}
	return n.tables.NameStats.Put(id, kernel.NameStats{})
}

// enter makes the programs learn the names of a state from its resolvers, besides the names and resolvers
// that are known.
func (n *names) enter(s *policy.State) error {
	defer n.publish()
	if err := distinctNetworks(slices.Sorted(maps.Keys(s.Resolvers))); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Names())) {
		if n.numbers[name] != 0 {
			continue
		}
		id := n.last + 1
		err := n.start(id) // first: addresses are learnt only for numbers with counters
		if err == nil {
			err = n.put(name, id)
		}
		if errors.Is(err, unix.E2BIG) {
			err = fmt.Errorf("more than %d names: delete Policies, or use *.NAME for several names: %w", datapath.NameMax, datapath.ErrCapacity)
		}
		if err != nil {
			return fmt.Errorf("name %q in policies: %w", name, errors.Join(err, n.tables.NameStats.Delete(id)))
		}
		n.numbers[name], n.last = id, id
	}
	for key := range resolversOf(s) {
		v := kernel.Resolver{GraceS: n.graceS}
		if was, known := n.resolvers[key]; known && was == v {
			continue
		}
		if err := n.tables.Resolver.Put(key, v); err != nil {
			return fmt.Errorf("resolver %s: %w", key.Addr.Addr(), err)
		}
		n.resolvers[key] = v
	}
	return nil
}

// put writes the number of a name; 0 removes it.
func (n *names) put(name string, id uint32) error {
	base, below := strings.CutPrefix(name, wildcard)
	text := textOf(base)
	ids := n.texts[text]
	if below {
		ids.Below = id
	} else {
		ids.Exact = id
	}
	if ids == (kernel.NameIds{}) {
		delete(n.texts, text)
		return n.tables.Name.Delete(text)
	}
	if err := n.tables.Name.Put(text, ids); err != nil {
		return err
	}
	n.texts[text] = ids
	return nil
}

// retire removes the names and resolvers that a state, which is in force, does not have. The addresses
// of the names are deleted by the next sweep.
func (n *names) retire(s *policy.State) error {
	defer n.publish()
	wanted := s.Names()
	for name, id := range n.numbers {
		if wanted[name] {
			continue
		}
		if err := errors.Join(n.put(name, 0), n.tables.NameStats.Delete(id)); err != nil {
			return fmt.Errorf("name %q of no policy: %w", name, err)
		}
		delete(n.numbers, name)
	}
	resolvers := resolversOf(s)
	for key := range n.resolvers {
		if resolvers[key] {
			continue
		}
		if err := n.tables.Resolver.Delete(key); err != nil {
			return fmt.Errorf("resolver %s of no network: %w", key.Addr.Addr(), err)
		}
		delete(n.resolvers, key)
	}
	return nil
}

// holds reports whether the tables contain what this run wrote.
func (n *names) holds() (bool, error) {
	is := &names{tables: n.tables}
	if err := is.read(); err != nil {
		return false, fmt.Errorf("names in policies: %w", err)
	}
	for _, id := range n.numbers { // external deletion of the counters stops learning
		if err := n.start(id); err != nil {
			return false, fmt.Errorf("names in policies: %w", err)
		}
	}
	return maps.Equal(is.texts, n.texts) && maps.Equal(is.resolvers, n.resolvers), nil
}

// sum returns a hash of the numbers and resolvers.
func (n *names) sum() (sum uint64) {
	for text, ids := range n.texts {
		sum += hashOf(text, ids)
	}
	for key, v := range n.resolvers {
		sum += hashOf(key, v)
	}
	return sum
}

const wildcard = "*."

// textOf returns a name as in a DNS message.
func textOf(name string) (text kernel.NameText) {
	at := 0
	for label := range strings.SplitSeq(name, ".") {
		if at+len(label)+1 >= len(text.Text) {
			break // the API permits no such name
		}
		text.Text[at] = uint8(len(label))
		at += 1 + copy(text.Text[at+1:], label)
	}
	return text
}

// nameOf returns the name for which textOf returns a text.
func nameOf(text kernel.NameText) string {
	var labels []string
	for at := 0; at < len(text.Text) && text.Text[at] != 0; {
		end := min(at+1+int(text.Text[at]), len(text.Text))
		labels = append(labels, string(text.Text[at+1:end]))
		at = end
	}
	return strings.Join(labels, ".")
}

// resolversOf returns the keys of ll_resolver for a state.
func resolversOf(s *policy.State) map[kernel.ResolverKey]bool {
	all := make(map[kernel.ResolverKey]bool)
	for network, addrs := range s.Resolvers {
		for _, addr := range addrs {
			all[kernel.ResolverKey{Addr: kernel.AddrOf(addr), Network: networkNumber(network)}] = true
		}
	}
	return all
}

// distinctNetworks reports two networks with one number: they would learn from each other's resolvers.
func distinctNetworks(networks []string) error {
	of := make(map[uint32]string)
	for _, name := range networks {
		number := networkNumber(name)
		if other, known := of[number]; known {
			return fmt.Errorf("%s and %s have resolvers, and their names have the same hash: rename one of the two", other, name)
		}
		of[number] = name
	}
	return nil
}

// networkNumber returns how programs identify a network: a hash of its name, which a restart does not
// change.
func networkNumber(name string) uint32 {
	if name == "" {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return max(h.Sum32(), 1)
}

// Names returns the names in rules for which an address is learnt in a network: those by which new
// connections may use it, and those by which they no longer may. It does not wait for changes.
func (p *Policies) Names(network string, addr netip.Addr) (usable, expired []string, err error) {
	numbers := p.domains.known.Load()
	if numbers == nil || network == "" {
		return nil, nil, nil
	}
	now, key := kernel.NowTick(), kernel.LearnedKey{Addr: kernel.AddrOf(addr), Network: networkNumber(network)}
	for _, name := range slices.Sorted(maps.Keys(*numbers)) {
		var is kernel.Learned
		key.Name = (*numbers)[name]
		found, err := p.Tables.Learned.Find(key, &is)
		if err != nil {
			return nil, nil, fmt.Errorf("addresses of name %q: %w", name, err)
		}
		switch {
		case !found:
		case int32(now-is.ExpiryTick) > 0:
			expired = append(expired, name)
		default:
			usable = append(usable, name)
		}
	}
	return usable, expired, nil
}

// AddrsOf returns the addresses that new connections in a network may use by a name in rules, sorted. It
// does not wait for changes.
func (p *Policies) AddrsOf(network, name string) (addrs []netip.Addr, err error) {
	numbers := p.domains.known.Load()
	if numbers == nil || network == "" || (*numbers)[name] == 0 {
		return nil, nil
	}
	id, number, now := (*numbers)[name], networkNumber(network), kernel.NowTick()
	err = p.Tables.Learned.Batches(func(keys []kernel.LearnedKey, values []kernel.Learned) error {
		for i := range keys {
			if keys[i].Name == id && keys[i].Network == number && int32(now-values[i].ExpiryTick) <= 0 {
				addrs = append(addrs, keys[i].Addr.Addr())
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of name %q: %w", name, err)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil // a batch may repeat an entry
}

// noteNetworks records in which networks the Endpoints of a state in force learn names.
func (p *Policies) noteNetworks(s *policy.State) {
	networks := make(map[datapath.EndpointName]string)
	for _, e := range s.Entities {
		if e.Network != "" {
			networks[datapath.EndpointName(e.Endpoint)] = e.Network
		}
	}
	p.networks.Store(&networks)
}

// formerNames returns the names to which the destination of a packet of an Endpoint, which policies have
// denied, has belonged.
func (p *Policies) formerNames(endpoint datapath.EndpointName, addr netip.Addr) string {
	networks := p.networks.Load()
	if networks == nil || (*networks)[endpoint] == "" {
		return ""
	}
	_, expired, _ := p.Names((*networks)[endpoint], addr) // an event says less after an error
	return strings.Join(expired, " ")
}
