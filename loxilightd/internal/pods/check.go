// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// check returns how an interface differs from its record.
func (s *Server) check(ctx context.Context, p *api.CNIParams, c *conf) *api.Error {
	o := ownerOf(p)
	release, err := s.hold(ctx, o)
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	r := s.pods[o]
	s.mu.Unlock()
	if r == nil || !r.Done {
		return coded(api.ReasonNotFound, api.CNIContainerUnknown, "%s of container %s was not added, or was removed", o.IfName, o.ContainerID)
	}
	if p.Netns != r.Netns {
		return badEnvironment("CNI_NETNS", "%s differs from %s, the netns of the ADD", p.Netns, r.Netns)
	}
	if err := r.agrees(c); err != nil {
		return err
	}
	if err := s.Links.Check(ctx, r.link()); err != nil {
		return linkError(err)
	}
	if s.VerifyEndpoint != nil {
		if err := s.VerifyEndpoint(ctx, r.Object); err != nil {
			return unavailable("%s/%s could not be checked: %v", kindEndpoint, r.Object, err)
		}
	}
	patient, cancel := context.WithTimeout(ctx, pendingPatience)
	defer cancel()
	for _, o := range r.objects() {
		if st, ok := s.lastingStatus(patient, o); !ok {
			return failed("%s: does not exist: another program deleted it", o)
		} else if st.State != api.StateReady {
			return unavailable("%s: %s: %s", o, st.State, st.Message)
		}
	}
	if r.Plugin != nil {
		return s.runPlugin(ctx, r.Plugin, api.CNICheck, r.owner(), r.Netns, c.PrevResult)
	}
	if !slices.ContainsFunc(s.Addresses.Leases(), func(l ipam.Lease) bool { return l.Owner == o }) {
		return failed("%s no longer has addresses", o)
	}
	return nil
}

// lastingStatus returns the status of an object. It waits while the object is Pending, until ctx
// ends.
func (s *Server) lastingStatus(ctx context.Context, o api.ObjectRef) (api.Status, bool) {
	for {
		st, ok := s.Objects.Status(o)
		if !ok || st.State != api.StatePending {
			return st, ok
		}
		select {
		case <-time.After(pendingInterval):
		case <-ctx.Done():
			return st, ok
		}
	}
}

// agrees checks that the runtime's previous result belongs to this interface.
func (r *record) agrees(c *conf) *api.Error {
	if c.prev == nil {
		return badConfig("prevResult", "is missing: CHECK requires it")
	}
	has := func(l resultLink) bool { return l.Name == r.IfName && l.MAC == r.MAC && l.Sandbox == r.Netns }
	if !slices.ContainsFunc(c.prev.Interfaces, has) {
		return badConfig("prevResult", "has no interface %s with address %s in %s", r.IfName, r.MAC, r.Netns)
	}
	for _, a := range r.Addresses {
		if !slices.ContainsFunc(c.prev.IPs, func(ip resultIP) bool { return ip.Address == a }) {
			return badConfig("prevResult", "does not have address %s of %s", a, r.IfName)
		}
	}
	return nil
}

// patientStatus reports whether pods can be added, but waits for some time if the daemon is still
// starting.
func (s *Server) patientStatus(ctx context.Context, c *conf) *api.Error {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	for {
		err := s.status(ctx, c)
		if err == nil || err.Reason() != api.ReasonUnavailable || time.Now().After(s.starts) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// status reports whether pods can be added.
func (s *Server) status(ctx context.Context, c *conf) *api.Error {
	code := api.CNINotAvailable
	notAvailable := func(format string, args ...any) *api.Error {
		return coded(api.ReasonUnavailable, code, format, args...)
	}
	select {
	case <-s.clean:
	default:
		return notAvailable("the daemon has not finished its start")
	}
	// So far, the data plane works in the state that an earlier run left, so existing pods are
	// connected.
	if slices.ContainsFunc(s.all(), func(r *record) bool { return r.Network == c.Network && r.Done }) {
		code = api.CNINotConnected
	}
	o := api.ObjectRef{Kind: kindPodNetwork, Name: c.Network}
	if _, ok := s.Network(c.Network); !ok {
		return notAvailable("%s does not exist", o)
	}
	ctx, cancel := context.WithTimeout(ctx, pendingPatience)
	defer cancel()
	if st, ok := s.lastingStatus(ctx, o); !ok || st.State != api.StateReady {
		return notAvailable("%s: %s: %s", o, st.State, st.Message)
	}
	return nil
}

// kindPodNetwork is the kind of pod networks.
const kindPodNetwork = "PodNetwork"
