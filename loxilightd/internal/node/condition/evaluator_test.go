// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestReportsOnce: a row that is tried again and is still Pending for the same reason is not
// reported again.
func TestReportsOnce(t *testing.T) {
	var reports []string
	e := New(Options{
		Store: openStore(t), Telemetry: backends.NewFake(backends.FakeOptions{}).Telemetry(),
		StatusChanged: func(_ state.Key, s reconcile.Status) { reports = append(reports, s.State.String()+" "+s.Message) },
	})
	k := state.Key{Kind: state.KindRoute, Name: "far"}
	waits, ready := reconcile.Status{State: reconcile.Pending, Message: "p2 is down"}, reconcile.Status{State: reconcile.Done}
	for _, s := range []reconcile.Status{waits, waits, ready, ready, waits} {
		e.report(k, s, true)
	}
	is := func(s reconcile.Status) string { return s.State.String() + " " + s.Message }
	if want := []string{is(waits), is(ready), is(ready), is(waits)}; !slices.Equal(reports, want) {
		t.Errorf("reported %q, want %q", reports, want)
	}
}
