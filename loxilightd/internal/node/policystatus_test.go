// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPolicyStateOfEarlierRun: while the row of an earlier run is in force, because this run cannot
// replace it, the state that packets obey is unknown rather than empty.
func TestPolicyStateOfEarlierRun(t *testing.T) {
	earlier := &policy.State{Policies: map[string]*policy.Policy{"earlier": {Name: "earlier"}}}
	plane := backends.NewFake(backends.FakeOptions{})
	if err := plane.Policies().Update(t.Context(), datapath.NodeSet, earlier); err != nil {
		t.Fatal(err)
	}
	plane.Refuse("bad", errors.New("too many rows"))
	store := openStore(t)
	commit(t, store, []*state.Object{tier("main", 1), appliedTo("bad", "app", "web")})
	n := start(t, Options{Store: store, Plane: plane, PruneNotBefore: time.Time{}})
	x := &policySite{&mirrorSite{Node: n, t: t, store: store, plane: plane}}
	x.status(state.KindPolicy, "bad", "too many rows")
	if plane.PolicyContent() != earlier {
		t.Fatal("the earlier row is not in force")
	}
	if is, _, pending := n.PolicyState(); is != nil || pending == "" {
		t.Errorf("state %+v, pending %q", is, pending)
	}
	plane.Refuse("bad", nil)
	plane.SignalChange()
	x.status(state.KindPolicy, "bad", "")
	if is, _, pending := n.PolicyState(); is == nil || is.Policies["bad"] == nil || pending != "" {
		t.Errorf("state %+v, pending %q", is, pending)
	}
}
