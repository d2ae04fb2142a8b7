// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// dialTimeout bounds each try to connect.
const dialTimeout = 4 * time.Second

// dialer connects to the API server. The address that it is known by in a pod is that of a
// Service, which leads where the node's own data plane says: so the API servers' own
// addresses are tried as well, and before it, where nobody has configured an address. They
// come in any order: otherwise all nodes would watch the same one of several.
type dialer struct {
	net.Dialer
	configured bool
	servers    atomic.Pointer[func() []string]
}

func newDialer(configured bool) *dialer {
	return &dialer{Dialer: net.Dialer{Timeout: dialTimeout, KeepAlive: 10 * time.Second}, configured: configured}
}

// dial connects to the first address that answers. Whoever answers has to show a
// certificate for the name that was configured.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	addresses := []string{address}
	if servers := d.servers.Load(); servers != nil {
		known := slices.DeleteFunc((*servers)(), func(a string) bool { return a == address })
		rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
		if d.configured {
			addresses = append(addresses, known...)
		} else {
			addresses = append(known, address)
		}
	}
	var all []error
	for _, a := range addresses {
		conn, err := d.DialContext(ctx, network, a)
		if err == nil {
			return conn, nil
		}
		all = append(all, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(all...)
}

// SetServers says where else the API servers are: servers returns address:port of each. It
// is asked for each connection, and answers at once, with a slice that is nobody else's.
func (c *Client) SetServers(servers func() []string) { c.dialer.servers.Store(&servers) }
