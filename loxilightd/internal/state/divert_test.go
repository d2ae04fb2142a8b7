// SPDX-License-Identifier: Apache-2.0

package state

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// diverting returns a service that diverts clients to other services.
func diverting(t *testing.T, name, frontend string, others ...datapath.ServiceName) *Object {
	t.Helper()
	o := service(t, name, frontend+" 1")
	for _, other := range others {
		v := o.Value.(*Service)
		v.Diverts = append(v.Diverts, datapath.Divert{Service: other})
		o.Spec += " " + string(other)
	}
	return o
}

// TestDivertTargetExists: the target of a diversion must exist or be created by the same
// change, and cannot be deleted while it is referenced.
func TestDivertTargetExists(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Decode = func(_ string, spec []byte) (Value, error) {
		words := strings.Fields(string(spec))
		var others []datapath.ServiceName
		for _, w := range words[2:] {
			others = append(others, datapath.ServiceName(w))
		}
		return diverting(t, "", words[0], others...).Value, nil
	}
	s, _ := open(t, cfg)
	outside, inside := diverting(t, "outside", "192.0.2.1:80", "inside"), diverting(t, "inside", "192.0.2.2:80")
	wantRefusal(t, s, &Transaction{Put: []*Object{outside}}, Invalid, "Service/outside", "spec.divert[0].service", "there is no Service/inside")
	commit(t, s, &Transaction{Put: []*Object{outside, inside}})
	gone := Key{KindService, "inside"}
	wantRefusal(t, s, &Transaction{Delete: []Key{gone}}, Conflict, "Service/inside", "", "Service/outside diverts clients to it in spec.divert[0].service")
	wantRefusal(t, s, &Transaction{Replace: &Scope{Owner: "cli", Kinds: []string{KindService}}, Put: []*Object{outside}}, Conflict, "Service/inside", "", "Service/outside diverts clients to it")
	other := diverting(t, "other", "192.0.2.3:80")
	moved := diverting(t, "outside", "192.0.2.1:80", "other")
	commit(t, s, &Transaction{Put: []*Object{moved, other}, Delete: []Key{gone}})
	commit(t, s, &Transaction{Delete: []Key{other.Key, moved.Key}})
}
