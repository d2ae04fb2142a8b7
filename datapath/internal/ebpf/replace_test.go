// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// become turns this package into another version of loxilight: in most values the padding becomes a
// field whose name is future, one value has an additional field, there is an additional map, and
// the programs are of another build. "" is the version of the repository.
func become(t testing.TB, future string) {
	t.Helper()
	restore := versionOf(t)
	t.Cleanup(restore)
	if future == "" {
		return
	}
	alter := func(load func() (*ebpf.CollectionSpec, error)) func() (*ebpf.CollectionSpec, error) {
		return func() (*ebpf.CollectionSpec, error) {
			spec, err := load()
			if err != nil {
				return nil, err
			}
			for _, m := range spec.Maps {
				m.Value = rename(m.Value, future)
			}
			if m := spec.Maps[kernel.MapLlAffinity]; m != nil {
				s := *m.Value.(*btf.Struct)
				s.Members = append(slices.Clone(s.Members), btf.Member{Name: future, Type: &btf.Int{Name: "unsigned long long", Size: 8}, Offset: btf.Bits(8 * s.Size)})
				s.Size += 8
				m.Value, m.ValueSize = &s, s.Size
			}
			return spec, spec.Variables[kernel.VarConfigConfirmTicks].Set(uint32(36))
		}
	}
	load := alter(loadMapSpecs)
	loadMapSpecs = func() (*ebpf.CollectionSpec, error) {
		spec, err := load()
		if err == nil {
			m := spec.Maps[kernel.MapLlAffinity].Copy()
			m.Name = "ll_" + future
			spec.Maps[m.Name] = m
		}
		return spec, err
	}
	for i := range programs {
		programs[i].Load = alter(programs[i].Load)
	}
}

// versionOf returns a function that restores the current version.
func versionOf(testing.TB) func() {
	maps, ingress, egress := loadMapSpecs, programs[0].Load, programs[1].Load
	return func() { loadMapSpecs, programs[0].Load, programs[1].Load = maps, ingress, egress }
}

// rename returns a type whose padding is called future.
func rename(of btf.Type, future string) btf.Type {
	s, ok := of.(*btf.Struct)
	if !ok {
		return of
	}
	c := *s
	c.Members = slices.Clone(s.Members)
	for i, m := range c.Members {
		if m.Name == "pad" {
			c.Members[i].Name = future
		}
		c.Members[i].Type = rename(m.Type, future)
	}
	return &c
}

// as runs f as another version.
func as(t testing.TB, future string, f func()) {
	t.Helper()
	restore := versionOf(t)
	defer restore()
	become(t, future)
	f()
}

// wantPins fails the test unless the pins are exactly the pins of a version.
func (n *network) wantPins(future string) {
	n.t.Helper()
	want := []string{pin.OriginName, "ports"}
	as(n.t, future, func() {
		spec, err := loadMapSpecs()
		n.ok(err)
		for name := range pin.Wanted(spec.Maps, n.config.Tables) {
			want = append(want, name)
		}
	})
	got := n.pins()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		n.t.Errorf("pins %v, want %v", got, want)
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := t.Context()
	n.config.Version = "1.0"
	n.restart("")
	n.attach()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	talks := []*conversation{n.dial("198.51.100.10:80")}
	for i, future := range []string{"", "mark", "other", "mark", ""} {
		as(t, future, func() {
			specs, err := loadMapSpecs()
			n.ok(err)
			p, err := pin.Preflight(n.config, specs.Maps)
			n.ok(err)
			want, previous := datapath.PinsConvert, fmt.Sprint("1.", i-1)
			if i == 0 {
				want, previous = datapath.PinsAdopt, "1.0"
			}
			if !p.OK || p.Action != want || p.Writer != previous {
				t.Errorf("%q: preflight says %+v", future, p)
			}
			n.config.Version = fmt.Sprint("1.", i)
			n.restart("")
		})
		n.wantPins(future)
		talks = append(talks, n.dial("198.51.100.10:80"))
		for k, c := range talks {
			c.echo(t, fmt.Sprintf("connection %d by version %q", k, future))
		}
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 100)
		if err != nil || len(list) != len(talks) {
			t.Errorf("%q: %d connections (%v), want %d", future, len(list), err, len(talks))
		}
		size := uint32(8)
		if future != "" {
			size += 8
		}
		if m := n.d.maps[kernel.MapLlAffinity]; m.ValueSize() != size {
			t.Errorf("%q: values of ll_affinity have %d bytes, want %d", future, m.ValueSize(), size)
		}
	}
}

var errKilled = errors.New("killed")

// dieAt makes the next start fail at its step number k, counted from 0; died returns the name of
// the step, "" if there are fewer steps.
func dieAt(t testing.TB, k int) (died func() string) {
	t.Helper()
	steps := countSteps(t, func(n int) error {
		if n == k {
			return errKilled
		}
		return nil
	})
	return func() string {
		if all := steps(); k < len(all) {
			return all[k]
		}
		return ""
	}
}

// countSteps calls each before every step of the following starts until done is called, which
// returns the steps.
func countSteps(t testing.TB, each func(n int) error) (done func() []string) {
	t.Helper()
	old := kernel.AtStep
	t.Cleanup(func() { kernel.AtStep = old })
	var steps []string
	kernel.AtStep = func(step string) error {
		steps = append(steps, step)
		return each(len(steps) - 1)
	}
	return func() []string {
		kernel.AtStep = old
		return steps
	}
}

// somePerKind selects the first and the last step of each kind.
func somePerKind(steps []string) (chosen []int) {
	kinds := map[string][]int{}
	for i, s := range steps {
		kind, _, _ := strings.Cut(s, " ")
		kinds[kind] = append(kinds[kind], i)
	}
	for _, all := range kinds {
		chosen = append(chosen, all[0], all[len(all)-1])
	}
	slices.Sort(chosen)
	return slices.Compact(chosen)
}

// TestKilledWhileReplacing: the daemon dies in the middle of an upgrade; then
// the same version, the old one or a third one starts, and completes its upgrade.
func TestKilledWhileReplacing(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := t.Context()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	c := n.dial("198.51.100.10:80")
	n.ok(n.d.Close())
	steps := countSteps(t, func(int) error { return nil })
	as(t, "mark", func() { n.ok(n.tryOpen()) })
	chosen := somePerKind(steps())
	n.open()
	if len(chosen) < 10 {
		t.Fatalf("steps %v", chosen)
	}
	// A run takes some of the steps, another run others.
	which := rand.IntN(brief(2, 4))
	for i, k := range chosen {
		if i%brief(2, 4) != which {
			continue
		}
		next := []string{"mark", "", "", "other"}[i/brief(2, 4)%4]
		n.ok(n.d.Close())
		n.config.Tables.Connections = 4096 + 100*uint32(1+i%2) // sizes change as well
		died := dieAt(t, k)
		var err error
		as(t, "mark", func() { err = n.tryOpen() })
		at := died()
		t.Logf("death at %q, then version %q", at, next)
		if !errors.Is(err, errKilled) {
			t.Fatalf("at %q: error %v", at, err)
		}
		c.echo(t, "after a death at "+at)
		as(t, next, n.open)
		n.wantPins(next)
		c.echo(t, fmt.Sprintf("by version %q after a death at %s", next, at))
		if _, err := n.ask("198.51.100.10:80"); err != nil {
			t.Fatalf("a new connection to version %q after a death at %s: %v", next, at, err)
		}
		if next != "" { // so that there is something to replace
			n.ok(n.d.Close())
			n.open()
		}
	}
}

// TestKilledAgainAndAgain: random versions follow one another; each dies at some step or completes
// its start.
func TestKilledAgainAndAgain(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
	c := n.dial("198.51.100.10:80")
	n.ok(n.d.Close())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	versions := []string{"", "mark", "other"}
	for round := range brief(8, 3) {
		future := versions[random.IntN(len(versions))]
		n.config.Tables.Connections = 4096 + 100*random.Uint32N(3)
		died := dieAt(t, random.IntN(70))
		var err error
		as(t, future, func() { err = n.tryOpen() })
		if at := died(); at != "" && !errors.Is(err, errKilled) || at == "" && err != nil {
			t.Fatalf("round %d, version %q, death at %q: %v", round, future, at, err)
		}
		c.echo(t, fmt.Sprint("round ", round))
	}
	n.open()
	n.wantPins("")
	c.echo(t, "at the end")
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	if m, err := ebpf.LoadPinnedMap(filepath.Join(n.d.dir, kernel.MapLlCt4), nil); err != nil || segmentBlocks(t, m) != kernel.ConnBlocks(n.config.Tables.Connections) {
		t.Errorf("the table of connections: %v, %v", m, err)
	}
}
