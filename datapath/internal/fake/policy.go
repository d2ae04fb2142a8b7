// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Policies implements [datapath.DataPlane].
func (d *DataPlane) Policies() datapath.PolicyTable { return policyTable{d.policies, d} }

type policyTable struct {
	*table[datapath.SetName, *policy.State]
	d *DataPlane
}

// Fits implements [datapath.PolicyTable].
func (t policyTable) Fits(s *policy.State) error {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	return t.d.fits(s)
}

// LimitPolicyRules makes the data plane refuse states whose policies have more than most rules, counting
// isolation as one; 0: no limit.
func (d *DataPlane) LimitPolicyRules(most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mostRules = most
}

// fits reports whether a state is within the limit. d.mu is held.
func (d *DataPlane) fits(s *policy.State) error {
	rules := 0
	for _, p := range s.Policies {
		rules += 1 + len(p.Rules[policy.Ingress]) + len(p.Rules[policy.Egress])
	}
	if d.mostRules > 0 && rules > d.mostRules {
		return fmt.Errorf("%d rules: %w", rules, datapath.ErrCapacity)
	}
	return nil
}

// PolicyContent returns the state of network policies, or nil without any. The caller must not
// change it.
func (d *DataPlane) PolicyContent() *policy.State {
	s, _ := d.policies.get(datapath.NodeSet)
	return s
}

// DamagePolicies changes or removes the policies in the data plane as an external change.
func (d *DataPlane) DamagePolicies(remove bool) error {
	return d.policies.damage(datapath.NodeSet, remove)
}

// admitPolicies rejects a state with policies that the test marked as refused.
func (d *DataPlane) admitPolicies(_, s **policy.State) error {
	if s == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fits(*s); err != nil {
		return err
	}
	for name := range (*s).Policies {
		if err := d.refused[name]; err != nil {
			return err
		}
	}
	return nil
}
