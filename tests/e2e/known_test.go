// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// connections are the connections of traffic, as listed at one time.
type connections struct {
	from, to time.Time // when they were listed
	byTuple  map[string]api.Connection
}

// oneExchange is the idle time of a UDP connection whose client has sent only once. A longer
// idleTimeout of the Service does not apply to it.
const oneExchange = 30 * time.Second

// lasting returns the number of connections that last longer than oneExchange.
func (c connections) lasting() (count int) {
	for _, one := range c.byTuple {
		if time.Duration(one.Expires) > oneExchange {
			count++
		}
	}
	return count
}

// expectKept fails the test if a connection has changed, or is missing in now and cannot have
// expired.
func (c connections) expectKept(t *testing.T, now connections) {
	t.Helper()
	expired := 0
	for tuple, old := range c.byTuple {
		one, found := now.byTuple[tuple]
		switch {
		case !found && now.to.Sub(c.from) >= time.Duration(old.Expires):
			expired++
		case !found:
			t.Errorf("connection %v is not known any more", tuple)
		case one.Backend != old.Backend || one.Reply != old.Reply || one.Service != old.Service:
			t.Errorf("connection %v: was %+v, is %+v", tuple, old, one)
		case one.Age < old.Age || one.Sent.Packets < old.Sent.Packets || one.Received.Packets < old.Received.Packets:
			t.Errorf("connection %v was begun anew: was %+v, is %+v", tuple, old, one)
		}
	}
	t.Logf("%d connections after %s; %d have expired", len(c.byTuple), now.to.Sub(c.from), expired)
}

// known returns the answered long-lived connections of traffic.
func (s *site) known(traffic ...*testtraffic.Traffic) connections {
	s.t.Helper()
	all := connections{from: time.Now(), byTuple: make(map[string]api.Connection)}
	wanted := make(map[string]bool)
	for _, tr := range traffic {
		for _, tuple := range tr.Tuples {
			wanted[tuple] = true
		}
	}
	for _, c := range s.Connections(api.ConnectionFilter{Service: "web"}) {
		if c.State != "established" && c.State != "replied" {
			continue
		}
		tuple := fmt.Sprintf("%s %s %s", c.Protocol, c.Original.Source, c.Original.Destination)
		if wanted[tuple] {
			all.byTuple[tuple] = c
		}
	}
	all.to = time.Now()
	return all
}
