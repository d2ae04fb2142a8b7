// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"reflect"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestCauses: each cause leads to one finding, for the object whose message names no other object.
func TestCauses(t *testing.T) {
	down := `device "eth0" is down: run ip link set eth0 up`
	peer := "underlay address 192.0.2.2 is unreachable: " + down
	all := []api.NotReady{
		{Object: "Tunnel/mesh", State: api.StatePending, Message: "no Peer behind it is Ready; Peer/b: " + peer},
		{Object: "Peer/b", State: api.StatePending, Message: peer},
		{Object: "Interface/eth0", State: api.StatePending, Message: down},
		{Object: "Route/a", State: api.StateError, Message: down},
		{Object: "Service/web", State: api.StatePending},
		{Object: "Service/dns", State: api.StatePending},
		{Object: "NAT/a", State: api.StatePending, Message: "x"},
		{Object: "NAT/b", State: api.StatePending, Message: "x"},
	}
	objects, others := causes(all)
	var names []string
	for _, o := range objects {
		names = append(names, o.Object)
	}
	if want := []string{"Interface/eth0", "Route/a", "Service/web", "Service/dns", "NAT/a"}; !reflect.DeepEqual(names, want) {
		t.Errorf("findings of %q, want %q", names, want)
	}
	want := map[string][]string{"Interface/eth0": {"Tunnel/mesh", "Peer/b"}, "NAT/a": {"NAT/b"}}
	if !reflect.DeepEqual(others, want) {
		t.Errorf("others: %v, want %v", others, want)
	}
}
