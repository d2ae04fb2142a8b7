// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Options are what an [Evaluator] uses. Functions are safe for concurrent use.
type Options struct {
	Store     *state.Store
	Telemetry datapath.Telemetry
	// HostDevice and SwitchDevice are the ends of the link between host and switch, and
	// SwitchNamespace is the name of the switch's network namespace; empty if host and switch are
	// the same namespace.
	HostDevice, SwitchDevice, SwitchNamespace string

	// RowStatus returns the status of an object's rows; it returns false if the data plane has not
	// received the object yet.
	RowStatus func(state.Key) (reconcile.Status, bool)
	// PortStatus and the next three functions return the status of one row, including rows that
	// belong to no object of that kind.
	PortStatus     func(datapath.PortName) (reconcile.Status, bool)
	EndpointStatus func(datapath.EndpointName) (reconcile.Status, bool)
	TunnelStatus   func(datapath.TunnelName) (reconcile.Status, bool)
	PeerStatus     func(datapath.PeerName) (reconcile.Status, bool)
	// Subjects returns the Endpoints to which a Policy is applied; nil: none.
	Subjects func(policy string) []datapath.EndpointName
	// Denied reports whether all traffic of an Endpoint is to be dropped because the Endpoint lacks the
	// Entity that its network requires, and whether it is dropped; nil: never.
	Denied func(endpoint string) (desired, inForce bool)
	// BackendHealth returns the health of a Service's backend.
	BackendHealth func(service string, backend datapath.BackendAddr) health.Result

	// Opening reports whether the link of an Endpoint is set up only after the Endpoint is Ready,
	// so that the Endpoint needs no carrier to be Ready. Nil: never.
	Opening func(endpoint string) bool
	// StatusChanged is called whenever the status of an object changes; nil: not called.
	StatusChanged func(state.Key, reconcile.Status)
}
