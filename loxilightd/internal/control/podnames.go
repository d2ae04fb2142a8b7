// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
	"sync"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// podNames finds Endpoints by address, as of the latest revision.
type podNames struct {
	mu     sync.Mutex
	of     *state.Snapshot
	byAddr map[netip.Addr]*state.Object
}

// at returns the Endpoints of a snapshot by address.
func (p *podNames) at(s *state.Snapshot) map[netip.Addr]*state.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of != s {
		p.of, p.byAddr = s, s.Endpoints()
	}
	return p.byAddr
}

// sideOf returns the Endpoint that has an address, or nil if no Endpoint has it.
func (s *Server) sideOf(a netip.Addr) *api.ConnectionSide {
	o := s.pods.at(s.Store.Snapshot())[a.Unmap()]
	if o == nil {
		return nil
	}
	v := o.Value.(*state.Endpoint)
	return &api.ConnectionSide{Endpoint: o.Name, Namespace: v.Namespace, Pod: v.Pod}
}

// nameConnection adds the Endpoints of a connection: the Endpoint that opened it, and the Endpoint
// that answers after destination translation.
func (s *Server) nameConnection(a *api.Connection, c *datapath.Connection) *api.Connection {
	a.From = s.sideOf(c.Original.Source.Addr())
	a.To = s.sideOf(c.Reply.Source.Addr())
	return a
}

// addressesOf returns an Endpoint's addresses, for use in a filter.
func (s *Server) addressesOf(endpoint string) ([]netip.Addr, *api.Error) {
	o, ok := s.Store.Snapshot().Get(state.Key{Kind: state.KindEndpoint, Name: endpoint})
	if !ok {
		return nil, api.Errorf(api.ReasonNotFound, "there is no Endpoint %q: see llcli get endpoints", decode.Shorten(endpoint)).At("", "filter.endpoint")
	}
	v := o.Value.(*state.Endpoint)
	return append([]netip.Addr{datapath.LinkLocal(v.MAC)}, v.Addresses...), nil
}
