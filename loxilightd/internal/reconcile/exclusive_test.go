// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// exclusiveTable is a table in which rows with odd values have something to release. It records its
// calls.
type exclusiveTable struct {
	*table
	calls []string
}

func (y *exclusiveTable) Begin(ctx context.Context, key string, v int) (complete bool, err error) {
	y.calls = append(y.calls, fmt.Sprint("begin ", key, v))
	if err := y.fault("begin " + key); err != nil {
		return false, err
	}
	if v%2 == 0 {
		return true, y.table.Update(ctx, key, v)
	}
	return false, nil
}

func (y *exclusiveTable) Update(ctx context.Context, key string, v int) error {
	y.calls = append(y.calls, fmt.Sprint("update ", key, v))
	return y.table.Update(ctx, key, v)
}

func (y *exclusiveTable) Delete(ctx context.Context, key string) error {
	y.calls = append(y.calls, "delete "+key)
	return y.table.Delete(ctx, key)
}

// TestExclusiveTable: a row releases resources after all rows that changed along with it have been
// tried, and is Done only then. Without other work, Begin is not called.
func TestExclusiveTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &exclusiveTable{table: newTable(map[string]int{})}
		r := startWith(t, y, Options[string, int]{VerifyInterval: time.Hour})
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(y.calls, want) {
				t.Errorf("%s: %q, want %q", what, y.calls, want)
			}
			y.calls = nil
		}
		r.Apply(1, []Change[string, int]{put("a", 1), put("b", 2), put("c", 3), del("d")})
		expect("a transaction", "begin a1", "begin b2", "begin c3", "delete d", "update a1", "update c3")
		wantContent(t, y.table, map[string]int{"a": 1, "b": 2, "c": 3})
		if n := r.counts[Done]; n != 3 {
			t.Errorf("%d rows are done, want 3", n)
		}

		r.Apply(2, []Change[string, int]{put("a", 5)})
		expect("one alone", "update a5")

		y.delay = time.Second
		r.Apply(3, []Change[string, int]{put("a", 7), put("b", 4)})
		time.Sleep(time.Second / 2) // b is being tried
		r.Apply(4, []Change[string, int]{put("a", 9), put("b", 6)})
		time.Sleep(10 * time.Second)
		expect("a row that changes after Begin", "begin a7", "begin b4", "begin a9", "begin b6", "update a9")
		wantContent(t, y.table, map[string]int{"a": 9, "b": 6, "c": 3})

		y.delay = 0
		y.fail["begin a"] = errInjected
		r.Apply(5, []Change[string, int]{put("a", 11), put("b", 8)})
		synctest.Wait()
		if s, _ := r.Status("a"); s.State != Failed {
			t.Errorf("what cannot begin is %s, want failed", s.State)
		}
		time.Sleep(time.Second) // no other work: the retry does not call Begin
		expect("a row that fails", "begin a11", "update b8", "update a11")
		wantContent(t, y.table, map[string]int{"a": 11, "b": 8, "c": 3})
	})
}
