// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Policies implements [datapath.DataPlane].
func (d *DataPlane) Policies() datapath.Table[datapath.SetName, *policy.State] { return d.policies }

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
	return refusal(d, slices.Sorted(maps.Keys((*s).Policies)))
}
