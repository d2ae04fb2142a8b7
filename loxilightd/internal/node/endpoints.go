// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// endpointTable applies Endpoints to the data plane and to the network, in this order: the source
// guard of a device is set before the device becomes a bridge port, and removed only once the
// device is no longer a bridge port.
type endpointTable struct {
	chainedTable[datapath.EndpointName, datapath.Endpoint]
	expectedRemovals *expectedRemovals
	// missing returns why the device of an Endpoint does not exist, if known; nil: never known.
	missing func(endpoint string) string
}

func (t endpointTable) Update(ctx context.Context, name datapath.EndpointName, e datapath.Endpoint) error {
	if err := t.first.Update(ctx, name, e); err != nil {
		return t.explained(name, err)
	}
	if e.Bridge == "" {
		what := "there is no PodNetwork"
		if e.Network != "" {
			what = fmt.Sprintf("there is no PodNetwork or Bridge %q", e.Network)
		}
		return fmt.Errorf("%s: %w", what, datapath.ErrAbsent)
	}
	if err := t.then.Update(ctx, name, e); err != nil {
		return t.explained(name, err)
	}
	if j, ok := t.first.(datapath.EndpointJoiner); ok {
		return j.Joined(name)
	}
	return nil
}

// explained adds to an error the reason why the Endpoint's device does not exist.
func (t endpointTable) explained(name datapath.EndpointName, err error) error {
	if t.missing == nil || !errors.Is(err, datapath.ErrAbsent) {
		return err
	}
	if why := t.missing(string(name)); why != "" {
		return fmt.Errorf("%w: %s", err, why)
	}
	return err
}

func (t endpointTable) Verify(ctx context.Context, name datapath.EndpointName) (bool, error) {
	plane, err := t.first.Verify(ctx, name)
	network, nerr := t.then.Verify(ctx, name)
	// expectedRemovals must be checked after the device has been read.
	if intact := plane && network; intact || !t.expectedRemovals.has(name) {
		return intact, errors.Join(err, nerr)
	}
	return true, nil
}

// endpointTable returns the table of endpoints, or a table that does not support any operation.
func (o *Options) endpointTable(expectedRemovals *expectedRemovals) datapath.Table[datapath.EndpointName, datapath.Endpoint] {
	if o.Network == nil {
		return nothing[datapath.EndpointName, datapath.Endpoint]{"endpoints"}
	}
	return endpointTable{
		chainedTable[datapath.EndpointName, datapath.Endpoint]{o.Plane.Endpoints(), o.Network.Endpoints()}, expectedRemovals, o.Missing,
	}
}

// VerifyEndpoint verifies an Endpoint in the data plane now, so that the Endpoint's status is
// current. It returns after the verification, or with the error from ctx.
func (n *Node) VerifyEndpoint(ctx context.Context, name string) error {
	return n.endpoints.VerifyNow(ctx, datapath.EndpointName(name))
}

// endpoint returns the desired state of an Endpoint, including the bridge of its network.
func (n *Node) endpoint(o *state.Object) datapath.Endpoint {
	return n.endpointIn(n.opts.Store.Snapshot(), o)
}

// endpointIn is like endpoint, for the state in a snapshot.
func (n *Node) endpointIn(s *state.Snapshot, o *state.Object) datapath.Endpoint {
	e := o.Value.(*state.Endpoint).Endpoint
	if e.Bridge = bridgeOf(s, e.Network); e.Bridge != "" {
		e.Routes = n.roamingRoutes(s, o.Value.(*state.Endpoint), e.Bridge)
	}
	network, _ := policies.ResolversOf(s, o.Value.(*state.Endpoint))
	e.Learns = network != ""
	return e
}

// bridgeOf returns the bridge device of a network, or an empty string if there is no such bridge.
func bridgeOf(s *state.Snapshot, network string) (device string) {
	if network != "" {
		if o, ok := s.Get(state.Key{Kind: state.KindPodNetwork, Name: network}); ok {
			return o.Value.(*state.PodNetwork).Bridge
		}
		if o, ok := s.Get(state.Key{Kind: state.KindBridge, Name: network}); ok {
			return o.Value.(*state.Bridge).Device
		}
		return ""
	}
	for _, o := range s.PodNetworks() {
		return o.Value.(*state.PodNetwork).Bridge // all PodNetworks share it
	}
	for o := range s.After(state.KindBridge, "") {
		if device != "" {
			return "" // ambiguous
		}
		device = o.Value.(*state.Bridge).Device
	}
	return device
}

// withEndpoints adds to the changed objects the Endpoints whose network or routes have changed.
func (n *Node) withEndpoints(s *state.Snapshot, changed []state.Key) []state.Key {
	isRelevant := func(k state.Key) bool {
		return k.Kind == state.KindBridge || k.Kind == state.KindPodNetwork || k.Kind == state.KindRoute && len(n.roaming) > 0
	}
	if !slices.ContainsFunc(changed, isRelevant) {
		return changed
	}
	all := slices.Clip(changed)
	for o := range s.After(state.KindEndpoint, "") {
		if !slices.Contains(changed, o.Key) && n.mustApplyAgain(s, o, changed) {
			all = append(all, o.Key)
		}
	}
	return all
}

// mustApplyAgain reports whether an Endpoint must be applied again because of changed objects: its
// network has changed, its row differs, or it may have waited for one of these objects.
func (n *Node) mustApplyAgain(s *state.Snapshot, o *state.Object, changed []state.Key) bool {
	v := o.Value.(*state.Endpoint)
	if slices.ContainsFunc(changed, func(k state.Key) bool {
		return (k.Kind == state.KindBridge || k.Kind == state.KindPodNetwork) && (v.Network == "" || k.Name == v.Network)
	}) {
		return true
	}
	is, ok := n.endpoints.Status(datapath.EndpointName(o.Name))
	row, _ := n.endpoints.Desired(datapath.EndpointName(o.Name))
	return !ok || is.State != reconcile.Done || !reflect.DeepEqual(row, n.endpointIn(s, o))
}

// needsRules reports whether an object's packets must not pass before the rules in the same
// transaction are in force.
func needsRules(k state.Key) bool {
	return k.Kind == state.KindInterface || k.Kind == state.KindPodNetwork || k.Kind == state.KindEndpoint
}
