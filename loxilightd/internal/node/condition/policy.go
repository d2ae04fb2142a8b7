// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ofPolicy returns a condition while the port of an Endpoint to which the Policy is applied is not
// attached: its packets do not pass the programs. Packets need not obey a staged Policy.
func (w *world) ofPolicy(name string, v *state.Policy) condition {
	unattached := w.unattached()
	if v.Staged || len(unattached) == 0 || w.opts.Subjects == nil {
		return condition{}
	}
	for _, endpoint := range w.opts.Subjects(name) {
		is, ok := unattached[endpoint]
		if !ok {
			continue
		}
		return condition{untried: is.IsUntried(), quiet: true, message: fmt.Sprintf(
			"not enforced for Endpoint/%s, whose device is not attached: %s", endpoint, is.Message)}
	}
	return condition{}
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
