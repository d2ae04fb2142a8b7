// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// faults makes calls fail at random.
type faults struct {
	mu     sync.Mutex
	share  float64
	random *rand.Rand
}

func newFaults(share float64, seed uint64) *faults {
	return &faults{share: share, random: rand.New(rand.NewPCG(seed, 0))}
}

// next reports whether this call fails, and whether it takes effect before it fails.
func (f *faults) next() (fails, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.share == 0 || f.random.Float64() >= f.share {
		return false, true
	}
	return true, f.random.IntN(2) == 0
}

func (f *faults) set(share float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.share = share
}

// costly is an object that uses table entries.
type costly[V any] interface {
	*V
	Cost() datapath.Cost
}

// admit returns a function that calls check, and then accounts for the table entries. Either of old
// and wanted may be nil; check may be nil.
func admit[V any, P costly[V]](d *DataPlane, check func(*V) error) func(old, wanted *V) error {
	return func(old, wanted *V) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		cost := d.cost
		if old != nil {
			cost = cost.Sub(P(old).Cost())
		}
		if wanted != nil {
			if check != nil {
				if err := check(wanted); err != nil {
					return err
				}
			}
			cost = cost.Add(P(wanted).Cost())
		}
		for _, t := range d.usage(cost) {
			if wanted != nil && t.Used > t.Size {
				return fmt.Errorf("%s: %w", t.name, datapath.ErrCapacity)
			}
		}
		d.cost = cost
		return nil
	}
}

// refusal returns errors for the rules that the test marked as refused. d.mu is held.
func refusal[K ~string](d *DataPlane, names []K) error {
	var errs []error
	for _, name := range names {
		if err := d.refused[string(name)]; err != nil {
			errs = append(errs, &datapath.RuleError{Rule: string(name), Err: err})
		}
	}
	return errors.Join(errs...)
}

func firewallGroups(s *datapath.FirewallSet) error {
	for name, r := range s.Rules {
		if err := missingGroup(string(name), &r.Match, s.Groups); err != nil {
			return err
		}
	}
	return nil
}

func natGroups(s *datapath.NATSet) error {
	for name, r := range s.Rules {
		if err := missingGroup(string(name), &r.Match, s.Groups); err != nil {
			return err
		}
	}
	return nil
}

// missingGroup returns an error if a rule refers to a group that does not exist.
func missingGroup(rule string, m *datapath.Match, groups map[datapath.GroupName]datapath.AddressGroup) error {
	for _, list := range [][]datapath.GroupName{m.SourceGroups, m.DestinationGroups} {
		for _, g := range list {
			if _, ok := groups[g]; !ok {
				return &datapath.RuleError{Rule: rule, Err: fmt.Errorf("there is no group %s", g)}
			}
		}
	}
	return nil
}
