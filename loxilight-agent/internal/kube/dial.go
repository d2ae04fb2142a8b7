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

// dialTimeout bounds each attempt to connect.
const dialTimeout = 4 * time.Second

// dialer connects to the API server. In a pod, the server's address is the address of a Service,
// which depends on the node's own data plane: so the API servers' own addresses are tried first,
// or, if an address is configured, after it. They are tried in random order: otherwise all nodes
// would watch the same server.
type dialer struct {
	net.Dialer
	configured bool
	servers    atomic.Pointer[func() []string]
	avoid      *dialer                // whose current server is tried last; nil: none
	current    atomic.Pointer[string] // the server of the last connection; nil: none yet
}

func newDialer(configured bool) *dialer {
	return &dialer{Dialer: net.Dialer{Timeout: dialTimeout, KeepAlive: 10 * time.Second}, configured: configured}
}

// dial connects to the first address that answers. Each server must present a certificate for the
// configured name.
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
	if d.avoid != nil {
		if taken := d.avoid.current.Load(); taken != nil {
			slices.SortStableFunc(addresses, func(a, b string) int { return order(a == *taken) - order(b == *taken) })
		}
	}
	var all []error
	for _, a := range addresses {
		conn, err := d.DialContext(ctx, network, a)
		if err == nil {
			d.current.Store(&a)
			return conn, nil
		}
		all = append(all, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(all...)
}

// SetServers sets the source of further API server addresses: servers returns address:port of
// each. It is called for each connection, and must return at once, with a slice that the caller
// may modify.
func (c *Client) SetServers(servers func() []string) {
	for _, d := range c.dialers {
		d.servers.Store(&servers)
	}
}

// order sorts false before true.
func order(last bool) int {
	if last {
		return 1
	}
	return 0
}
