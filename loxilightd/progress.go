// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/node"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// progress translates the node's status into API terms. All other methods are the node's own.
type progress struct{ *node.Node }

// Status implements [control.Progress].
func (p progress) Status(k state.Key) (api.Status, bool) {
	s, ok := p.Node.Status(k)
	return statusOf(s), ok
}

// NotReady implements [control.Progress].
func (p progress) NotReady(limit int, ignored map[string]bool) (map[state.Key]api.Status, int) {
	some, count := p.NotDoneExcept(limit, ignored)
	m := make(map[state.Key]api.Status, len(some))
	for k, s := range some {
		m[k] = statusOf(s)
	}
	return m, count
}

// Health implements [control.Progress].
func (p progress) Health(service string, backend netip.AddrPort) (state, message string) {
	r := p.Node.Health(health.Target{Service: service, Backend: backend})
	return r.State.String(), r.Message
}

func statusOf(s node.Status) api.Status {
	state := api.StatePending
	switch s.State {
	case reconcile.Done:
		state = api.StateReady
	case reconcile.Failed:
		state = api.StateError
	}
	return api.Status{State: state, Message: s.Message}
}
