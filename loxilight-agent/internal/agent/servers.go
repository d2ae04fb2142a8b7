// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// apiService is the Service of the API servers in every cluster.
const apiService = "default/kubernetes"

// servers returns the addresses of the API servers themselves: from the cluster or, before the
// cluster's first list, from an earlier agent's objects in the daemon.
func (a *Agent) servers() []string {
	if known := a.known.Load(); known != nil {
		return slices.Clone(*known)
	}
	return slices.Clone(a.before())
}

// noteServers takes over the cluster's list of its API servers. A server that removes itself before
// it stops may be the only one; in that case, the last known servers are remembered.
func (a *Agent) noteServers() {
	var addresses []string
	for _, slice := range unpack(a.slices.By(apiService)) {
		for _, p := range slice.Ports {
			if p.Port == nil {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(addresses) > 0 {
		a.known.Store(&addresses)
	}
}

// askBefore asks the daemon for the last known API servers: the serving ones, or all if none
// serves.
func (a *Agent) askBefore() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var addresses, down []string
	for o, err := range a.o.Daemon.List(ctx, api.ListParams{Kind: api.KindService, Owner: nodes.Owner, Labels: map[string]string{services.LabelNamespace: "default", services.LabelService: "kubernetes"}}) {
		if err != nil {
			return nil
		}
		var spec api.ServiceSpec
		if strings.Count(o.Name, "/") != 1 || decode(o.Spec, &spec) != nil { // not the object of the cluster IPs
			continue
		}
		for _, b := range spec.Backends {
			if b.State == "down" {
				down = append(down, b.Address)
			} else {
				addresses = append(addresses, b.Address)
			}
		}
	}
	if len(addresses) == 0 {
		return down
	}
	return addresses
}

// onceIn returns a function that caches the result of f, and calls f again only after a pause.
func onceIn(pause time.Duration, f func() []string) func() []string {
	var mu sync.Mutex
	var last []string
	var at time.Time
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); at.IsZero() || now.Sub(at) > pause {
			last, at = f(), now
		}
		return last
	}
}
