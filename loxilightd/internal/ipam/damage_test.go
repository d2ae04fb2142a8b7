// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDamage: the store starts despite any kind of damage. It contains the readable leases and the
// leases from other sources, and assigns no address twice.
func TestDamage(t *testing.T) {
	r := newRig(t, "10.7.1.0/24", "2001:db8:7::/64")
	var all []Lease
	for i := range 20 {
		name := fmt.Sprint("p", i)
		if _, err := r.try(name); err != nil {
			t.Fatal(err)
		}
		l, _ := r.Lease(owner(name))
		all = append(all, l)
	}
	r.release("p3")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.Store = nil
	good, err := os.ReadFile(r.o.Path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(good), "\n")
	flipped := slices.Clone(good)
	flipped[len(lines[0])+len(lines[1])+40] ^= 4
	for name, c := range map[string]struct {
		content string
		least   int // minimum number of leases that can be read
	}{
		"empty":       {"", 0},
		"zeros":       {strings.Repeat("\x00", 4096), 0},
		"a bit":       {string(flipped), 18},
		"zero tail":   {string(good[:len(good)*3/4]) + strings.Repeat("\x00", 900), 12},
		"no head":     {strings.Join(lines[1:], ""), 19},
		"other words": {"these are\nno leases\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			if err := os.WriteFile(r.o.Path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			r.o.Live = nil
			r.reopen()
			if r.Problem() == "" {
				t.Error("it is not reported")
			}
			if n := len(r.Leases()); n < c.least || n > 20 {
				t.Errorf("%d leases could be read, want %d or more", n, c.least)
			}
			aside, _ := filepath.Glob(r.o.Path + ".damaged-*")
			if len(aside) != 1 {
				t.Fatalf("set aside: %v", aside)
			}
			if b, err := os.ReadFile(aside[0]); err != nil || string(b) != c.content {
				t.Errorf("the file that was set aside differs: %v", err)
			}
			if err := os.Rename(aside[0], r.o.Path); err != nil {
				t.Fatal(err)
			}
			// This time, there are leases from other sources.
			r.o.Live = func() []Lease { return all }
			r.reopen()
			r.noneTwice()
			for _, l := range all {
				if now, ok := r.Lease(l.Owner); !ok || !slices.Equal(now.Addresses, l.Addresses) || now.Pod != l.Pod {
					t.Errorf("%s has %v, want %v", l.Owner, now.Addresses, l.Addresses)
				}
			}
			for i := range 20 {
				if _, err := r.try(fmt.Sprint("new", i)); err != nil {
					t.Error(err)
				}
			}
			r.noneTwice()
			if n := len(r.Leases()); n != 40 {
				t.Errorf("%d leases, want 40", n)
			}
			// The file is set aside only once.
			if err := os.Remove(filepathGlob(t, r.o.Path+".damaged-*")); err != nil {
				t.Fatal(err)
			}
			r.reopen()
			if n := len(r.Leases()); n != 40 || r.Problem() != "" {
				t.Errorf("%d leases after another start, want 40; problem: %s", n, r.Problem())
			}
			if err := errors.Join(r.Close(), os.Remove(r.o.Path)); err != nil {
				t.Fatal(err)
			}
			r.Store = nil
		})
	}
	r.t, r.o.Live = t, func() []Lease { return all }
	for range 300 {
		b := slices.Clone(good)
		for range 1 + rand.IntN(4) {
			at := rand.IntN(len(b))
			switch rand.IntN(3) {
			case 0:
				b[at] ^= byte(1 + rand.IntN(255))
			case 1:
				b = b[:max(at, 1)]
			default:
				b = slices.Insert(b, at, byte(rand.IntN(256)), '\n')
			}
		}
		if err := os.WriteFile(r.o.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r.reopen()
		r.noneTwice()
		if n := len(r.Leases()); n != len(all) {
			t.Fatalf("%d leases, want %d, of\n%s", n, len(all), b)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r.Store = nil
	}
	r.now = r.now.Add(time.Second) // so that files that are set aside have different names
	if err := os.Remove(r.o.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(r.o.Path, 0o700); err != nil { // not a file at all
		t.Fatal(err)
	}
	r.reopen()
	if _, err := r.try("after"); err != nil || r.Problem() == "" {
		t.Errorf("%v, problem: %s", err, r.Problem())
	}
}

func filepathGlob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// noneTwice checks that no address has two owners.
func (r *rig) noneTwice() {
	r.t.Helper()
	seen := map[netip.Addr]Owner{}
	for _, l := range r.Leases() {
		for _, p := range l.Addresses {
			if other, twice := seen[p.Addr()]; twice {
				r.t.Errorf("%s belongs to %s and to %s", p.Addr(), l.Owner, other)
			}
			seen[p.Addr()] = l.Owner
		}
	}
}

// TestAgainstModel runs random operations, with restarts and clock changes, and compares the
// results with a simple model in memory.
func TestAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	r := newRig(t, "10.7.1.0/27", "2001:db8:7::/122")
	const free4, free6 = 28, 61
	has := map[string][]netip.Prefix{}
	gave := map[netip.Addr]time.Time{}
	holder := func(a netip.Addr) string {
		for name, l := range has {
			if slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Addr() == a }) {
				return name
			}
		}
		return ""
	}
	// freeRested counts the addresses of a family that are free and have rested.
	freeRested := func(is4 bool) (count int) {
		a, n := netip.MustParseAddr("10.7.1.3"), free4
		if !is4 {
			a, n = netip.MustParseAddr("2001:db8:7::3"), free6
		}
		for ; n > 0; n, a = n-1, a.Next() {
			if at, ok := gave[a]; holder(a) == "" && (!ok || r.now.Sub(at) >= Rest) {
				count++
			}
		}
		return count
	}
	add := func(name string, asked ...string) {
		rested := map[bool]int{true: freeRested(true), false: freeRested(false)}
		got, err := r.try(name, asked...)
		before := has[name]
		switch {
		case err == nil && len(got) != 2:
			t.Fatalf("%s got %v", name, got)
		case errors.Is(err, ErrFull):
			if len(has) < free4 {
				t.Fatalf("%d of %d have an address, and %s got %v", len(has), free4, name, err)
			}
			return
		case errors.Is(err, ErrTaken):
			if other := holder(netip.MustParseAddr(asked[0])); other == "" || other == name {
				t.Fatalf("%s asked for %v, which %q has, and got %v", name, asked, other, err)
			}
			return
		case err != nil:
			t.Fatal(err)
		case before != nil && len(asked) == 0 && !slices.Equal(before, got):
			t.Fatalf("%s had %v and now has %v", name, before, got)
		}
		delete(has, name)
		for _, p := range got {
			if other := holder(p.Addr()); other != "" {
				t.Fatalf("%s got %v, which %s has", name, got, other)
			}
			at, was := gave[p.Addr()]
			if len(asked) == 0 && before == nil && was && r.now.Sub(at) < Rest && rested[p.Addr().Is4()] > 0 {
				t.Fatalf("%s got %s, which was given back %v ago, and %d others are free", name, p.Addr(), r.now.Sub(at), rested[p.Addr().Is4()])
			}
		}
		for _, p := range before {
			if !slices.Contains(got, p) {
				gave[p.Addr()] = r.now
			}
		}
		has[name] = got
	}
	for range 4000 {
		name := fmt.Sprint("p", random.IntN(40))
		switch random.IntN(10) {
		case 0, 1, 2, 3:
			add(name)
		case 4:
			add(name, fmt.Sprintf("10.7.1.%d", 3+random.IntN(free4)))
		case 5, 6, 7:
			r.release(name)
			for _, p := range has[name] {
				gave[p.Addr()] = r.now
			}
			delete(has, name)
		case 8:
			r.now = r.now.Add(time.Duration(random.Int64N(int64(20 * time.Second))))
		case 9:
			if random.IntN(8) == 0 {
				r.reopen()
			}
		}
		now := map[string][]netip.Prefix{}
		for _, l := range r.Leases() {
			now[l.ContainerID] = l.Addresses
		}
		if !maps.EqualFunc(now, has, slices.Equal) {
			t.Fatalf("leases %v, want %v", now, has)
		}
	}
}

// TestMain also runs the process that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("IPAM_TEST_FILE"); path != "" {
		if err := churn(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// churn allocates and releases in four goroutines until it is killed. It prints + after an
// allocation, -? before a release and - after it.
func churn(path string) error {
	s, err := Open(Options{Path: path, Networks: func() map[string][]netip.Prefix {
		return map[string][]netip.Prefix{"default": {netip.MustParsePrefix("10.7.0.0/20")}}
	}})
	if err != nil || s.Problem() != "" {
		return errors.Join(err, errors.New(s.Problem()))
	}
	failed := make(chan error)
	for worker := range 4 {
		go func() {
			for {
				name := fmt.Sprintf("w%dp%d", worker, rand.IntN(100)) // unique to the worker, so that its output is in order
				if rand.IntN(3) == 0 {
					fmt.Printf("-? %s\n", name)
					if err := s.Release(context.Background(), owner(name)); err != nil {
						failed <- err
					}
					fmt.Printf("- %s\n", name)
					continue
				}
				l, err := s.Allocate(context.Background(), Request{Network: "default", Owner: owner(name)})
				if err != nil {
					failed <- err
				}
				fmt.Printf("+ %s %s\n", name, l.Addresses[0])
			}
		}()
	}
	return <-failed
}

// TestCutOff: a process that is killed while it is writing leaves an incomplete last line, whose
// request was not answered. This is not damage: the lines before it are valid.
func TestCutOff(t *testing.T) {
	r := newRig(t, "10.7.1.0/24")
	for _, name := range []string{"a", "b"} {
		if _, err := r.try(name); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile(r.o.Path)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.LastIndexByte(good[:len(good)-1], '\n') + 1 // start of the line about b
	for length := before; length < len(good); length++ {
		if err := os.WriteFile(r.o.Path, good[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		r.reopen()
		if l := r.Leases(); r.Problem() != "" || len(l) != 1 || l[0].Owner != owner("a") {
			t.Fatalf("cut off after %d bytes of %d: %v, problem %q", length, len(good), l, r.Problem())
		}
	}
	if _, err := r.try("b"); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	if n := len(r.Leases()); n != 2 || r.Problem() != "" {
		t.Errorf("%d leases after the part that was cut off, want 2; problem: %s", n, r.Problem())
	}
}

// TestKilled repeatedly kills a process that assigns addresses: afterwards, all acknowledged leases
// exist, and no address has two owners.
func TestKilled(t *testing.T) {
	r := newRig(t, "10.7.0.0/20")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.Store = nil
	answers := 0
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "IPAM_TEST_FILE="+r.o.Path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// These are the names whose last answer was a lease and for which no request followed.
		sure := map[string]string{}
		lines, stop := bufio.NewScanner(out), 50+rand.IntN(400)
		for n := 0; lines.Scan(); n++ {
			f := strings.Fields(lines.Text())
			switch {
			case len(f) == 3 && f[0] == "+":
				sure[f[1]] = f[2]
			case len(f) >= 2:
				delete(sure, f[1])
			}
			if n == stop {
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			answers++
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: %v", round, err)
		}
		r.reopen()
		r.noneTwice()
		if r.Problem() != "" {
			t.Errorf("round %d: %s", round, r.Problem())
		}
		for name, address := range sure {
			if l, ok := r.Lease(owner(name)); !ok || l.Addresses[0].String() != address {
				t.Errorf("round %d: %s was given %s, and has %v", round, name, address, l.Addresses)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r.Store = nil
	}
	t.Logf("%d answers", answers)
}
