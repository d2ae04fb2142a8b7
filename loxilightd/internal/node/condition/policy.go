// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ofPolicy returns a condition while the port of an Endpoint to which the Policy is applied is not
// attached, because its packets do not pass the programs, or while names are not learnt for it. Packets
// need not obey a staged Policy.
func (w *world) ofPolicy(name string, v *state.Policy, s *state.Snapshot) condition {
	if v.Staged || w.opts.Subjects == nil {
		return condition{}
	}
	for range v.Names() {
		if is := w.ofNames(name, s); is.message != "" {
			return is
		}
		break
	}
	unattached := w.unattached()
	for _, endpoint := range w.opts.Subjects(name) {
		if endpoint == policy.Here {
			if is := w.ofNode(); is.message != "" {
				return is
			}
			continue
		}
		is, ok := unattached[endpoint]
		if !ok {
			continue
		}
		return condition{untried: is.IsUntried(), quiet: true, message: fmt.Sprintf(
			"not enforced for Endpoint/%s, whose device is not attached: %s", endpoint, is.Message)}
	}
	return condition{}
}

// ofNames returns a condition while the names of a Policy are not learnt for all of its subjects.
func (w *world) ofNames(name string, s *state.Snapshot) condition {
	for _, endpoint := range w.opts.Subjects(name) {
		if endpoint == policy.Here {
			return condition{quiet: true, message: "names are not learnt for this node itself: use prefixes in a Policy that applies to it"}
		}
		o, ok := s.Get(state.Key{Kind: state.KindEndpoint, Name: string(endpoint)})
		if !ok {
			continue
		}
		v := o.Value.(*state.Endpoint)
		if network, _ := policies.ResolversOf(s, v); network == "" {
			return condition{quiet: true, message: fmt.Sprintf(
				"names are not learnt for Endpoint/%s, because its network has no resolvers: set spec.resolvers of its PodNetwork or Bridge", endpoint)}
		}
	}
	return condition{}
}

// ofNode returns a condition while packets of the node's own sockets do not pass the programs: every
// device that can receive packets from other hosts must be attached.
func (w *world) ofNode() condition {
	if is := w.noneAttached(); is.message != "" {
		return condition{untried: is.untried, quiet: true, message: "not enforced for this node: " + is.message}
	}
	for _, device := range slices.Sorted(maps.Keys(w.found[0])) {
		d := w.found[0][device]
		if len(d.Addresses) == 0 || !w.isOutside(device, 0) || w.isPort(device) {
			continue
		}
		// Of the copies of a group frame that a bridge makes, the programs on its ports do not see the
		// copy for the node.
		if seen := w.isAttached(device, 0); seen || d.Kind != "bridge" && w.isCovered(device, 0) {
			continue
		}
		return condition{quiet: true, message: fmt.Sprintf(
			"not enforced for packets of this node on device %q, because no Interface attaches there: %s", device, w.addCommand(device, 0))}
	}
	return condition{}
}

// isPort reports whether a device of the host passes the packets that arrive there to a bridge or
// bond, which has them all.
func (w *world) isPort(device string) bool {
	for _, d := range w.found[0] {
		if d.Kind != "vrf" && slices.Contains(d.Ports, device) {
			return true
		}
	}
	return false
}

// endpointsUnattached returns the Endpoints whose ports are not attached.
func (w *world) endpointsUnattached(s *state.Snapshot) map[datapath.EndpointName]reconcile.Status {
	all := map[datapath.EndpointName]reconcile.Status{}
	for o := range s.After(state.KindEndpoint, "") {
		name := datapath.EndpointName(o.Name)
		is, ok := w.opts.EndpointStatus(name)
		if !ok {
			is = reconcile.Status{State: reconcile.Pending, Message: "not applied yet"}
		}
		if is.State != reconcile.Done {
			all[name] = is
		}
	}
	return all
}

// ofEntity returns a condition while no Endpoint exists that an Entity names.
func (w *world) ofEntity(v *state.Entity, s *state.Snapshot) condition {
	if v.Of == (state.EndpointRef{}) || len(s.EndpointsOf(v.Of)) > 0 {
		return condition{}
	}
	text := "%s does not exist: the Entity takes effect as soon as it does"
	if v.Of.Name == "" {
		text = "no Endpoint of %s exists: the Entity takes effect as soon as one does"
	}
	return condition{quiet: true, message: fmt.Sprintf(text, v.Of)}
}

// isChecked reports whether an object may have a condition.
func isChecked(o *state.Object) bool {
	switch v := o.Value.(type) {
	case *state.Namespace, *state.Tier:
		return false
	case *state.Entity:
		return v.Of != (state.EndpointRef{})
	}
	return true
}
