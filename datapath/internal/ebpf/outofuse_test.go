// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestOutOfUse: the next run knows which backends are draining or down.
func TestOutOfUse(t *testing.T) {
	n := newNetwork(t)
	s := web(3)
	s.Backends = append(s.Backends, datapath.Backend{Addr: backendAddrs(8081, "10.0.1.11")[0].Addr}) // weight 0
	s.Backends[0].State, s.Backends[2].State = datapath.BackendDraining, datapath.BackendDown
	n.ok(n.d.Services().Update(context.Background(), "web", s))
	n.restart("")
	var got []string
	for name, b := range n.d.Services().OutOfUse() {
		got = append(got, string(name)+" "+b.String())
	}
	slices.Sort(got)
	if want := []string{"web 10.0.1.11:8080", "web 10.0.1.13:8080"}; !slices.Equal(got, want) {
		t.Errorf("out of use after a restart: %q, want %q", got, want)
	}
}
