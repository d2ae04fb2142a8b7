// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// rig is a Store with its own clock.
type rig struct {
	*Store
	t        *testing.T
	o        Options
	now      time.Time
	networks map[string][]netip.Prefix
}

func newRig(t *testing.T, subnets ...string) *rig {
	r := &rig{t: t, now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), networks: map[string][]netip.Prefix{}}
	for _, s := range subnets {
		r.networks["default"] = append(r.networks["default"], netip.MustParsePrefix(s))
	}
	r.o = Options{
		Path: filepath.Join(t.TempDir(), "leases"), Boot: "boot-1",
		Now: func() time.Time { return r.now }, Networks: func() map[string][]netip.Prefix { return r.networks },
	}
	r.reopen()
	t.Cleanup(func() {
		if r.Store != nil {
			_ = r.Close()
		}
	})
	return r
}

// reopen closes the store and opens it again, as a restart of the daemon does.
func (r *rig) reopen() {
	r.t.Helper()
	if r.Store != nil {
		if err := r.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	s, err := Open(r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Store = s
}

func owner(name string) Owner { return Owner{ContainerID: name, IfName: "eth0"} }

func (r *rig) try(name string, asked ...string) ([]netip.Prefix, error) {
	q := Request{Network: "default", Owner: owner(name), Netns: "/run/netns/" + name, Pod: "ns/" + name}
	for _, a := range asked {
		q.Addresses = append(q.Addresses, netip.MustParseAddr(a))
	}
	l, err := r.Allocate(context.Background(), q)
	return l.Addresses, err
}

func (r *rig) want(name, addresses string, asked ...string) {
	r.t.Helper()
	if got, err := r.try(name, asked...); err != nil || fmt.Sprint(got) != addresses {
		r.t.Errorf("%s got %v, %v; want %s", name, got, err, addresses)
	}
}

func (r *rig) refused(name string, want error, asked ...string) {
	r.t.Helper()
	if got, err := r.try(name, asked...); !errors.Is(err, want) {
		r.t.Errorf("%s got %v, %v; want %v", name, got, err, want)
	} else {
		r.t.Logf("%s: %v", name, err)
	}
}

func (r *rig) release(name string) {
	r.t.Helper()
	if err := r.Release(context.Background(), owner(name)); err != nil {
		r.t.Error(err)
	}
}

func TestBothFamilies(t *testing.T) {
	r := newRig(t, "10.7.1.0/28", "2001:db8:7::/64")
	r.want("a", "[10.7.1.3/28 2001:db8:7::3/64]")
	r.want("b", "[10.7.1.4/28 2001:db8:7::4/64]")
	r.want("a", "[10.7.1.3/28 2001:db8:7::3/64]") // requesting again returns the same addresses
	r.release("a")
	r.release("a")
	r.release("unknown")
	r.want("c", "[10.7.1.5/28 2001:db8:7::5/64]") // the next address in sequence, not the released address
	r.reopen()
	r.want("b", "[10.7.1.4/28 2001:db8:7::4/64]")
	r.want("d", "[10.7.1.6/28 2001:db8:7::6/64]")
	l, ok := r.Lease(owner("d"))
	if !ok || l.Pod != "ns/d" || l.Netns != "/run/netns/d" || l.Boot != "boot-1" || !l.Since.Equal(r.now) {
		t.Errorf("lease of d: %v, %+v", ok, l)
	}
	if _, ok := r.Lease(owner("a")); ok {
		t.Error("a has something, and gave it back")
	}
	want := []Pool{
		{Network: "default", Subnet: netip.MustParsePrefix("10.7.1.0/28"), Used: 3, Size: 12},
		{Network: "default", Subnet: netip.MustParsePrefix("2001:db8:7::/64"), Used: 3, Size: 1 << 53},
	}
	if got := r.Pools(); !slices.Equal(got, want) {
		t.Errorf("pools %+v, want %+v", got, want)
	}
}

// TestWholeSubnet: all addresses but the reserved ones are assigned, each of them once.
func TestWholeSubnet(t *testing.T) {
	for subnet, want := range map[string][2]string{
		"10.9.8.64/29":     {"10.9.8.67", "10.9.8.70"},
		"10.9.8.128/30":    {},
		"2001:db8::f8/125": {"2001:db8::fb", "2001:db8::ff"},
		"10.9.8.1/32":      {},
		"2001:db8::/127":   {},
	} {
		t.Run(subnet, func(t *testing.T) {
			r := newRig(t, subnet)
			var got []netip.Addr
			for i := 0; ; i++ {
				l, err := r.try(fmt.Sprint("pod", i))
				if errors.Is(err, ErrFull) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, l[0].Addr())
			}
			slices.SortFunc(got, netip.Addr.Compare)
			if want[0] == "" {
				if len(got) > 0 {
					t.Errorf("gave out %v", got)
				}
				return
			}
			first, last := netip.MustParseAddr(want[0]), netip.MustParseAddr(want[1])
			var all []netip.Addr
			for a := first; ; a = a.Next() {
				if all = append(all, a); a == last {
					break
				}
			}
			if !slices.Equal(got, all) {
				t.Errorf("gave out %v, want %v", got, all)
			}
			if p := r.Pools()[0]; p.Used != uint64(len(all)) || p.Size != uint64(len(all)) {
				t.Errorf("pool %+v", p)
			}
		})
	}
}

func TestRest(t *testing.T) {
	r := newRig(t, "10.7.1.0/29") // addresses 3 to 6
	r.want("a", "[10.7.1.3/29]")
	r.want("b", "[10.7.1.4/29]")
	r.want("c", "[10.7.1.5/29]")
	r.release("b")
	r.now = r.now.Add(time.Second)
	r.release("a")
	r.want("d", "[10.7.1.6/29]")
	// Only resting addresses are left: the one that has rested longest is assigned.
	r.reopen()
	r.want("e", "[10.7.1.4/29]")
	r.release("e")
	r.want("f", "[10.7.1.3/29]")
	r.want("g", "[10.7.1.4/29]")
	r.refused("h", ErrFull)
	r.release("d")
	r.release("c")
	r.now = r.now.Add(Rest - time.Millisecond)
	r.release("g")
	r.now = r.now.Add(time.Millisecond)
	r.reopen()
	// 4 was released last, and rests; 5 and 6 have rested.
	r.want("i", "[10.7.1.5/29]")
	r.want("j", "[10.7.1.6/29]")
	r.want("k", "[10.7.1.4/29]")
}

func TestAskedFor(t *testing.T) {
	r := newRig(t, "10.7.1.0/24", "2001:db8:7::/64")
	r.want("a", "[10.7.1.77/24 2001:db8:7::3/64]", "10.7.1.77")
	r.want("b", "[10.7.1.3/24 2001:db8:7::4/64]") // a requested address does not advance the sequence
	r.want("a", "[10.7.1.77/24 2001:db8:7::3/64]", "10.7.1.77")
	r.refused("c", ErrTaken, "10.7.1.77")
	r.refused("c", ErrTaken, "2001:db8:7::9", "10.7.1.3")
	for _, bad := range []string{"10.7.1.0", "10.7.1.1", "10.7.1.2", "10.7.1.255", "10.7.2.9", "2001:db8:7::", "2001:db8:7::2", "2001:db8:8::9"} {
		r.refused("c", ErrAddress, bad)
	}
	r.refused("c", ErrAddress, "10.7.1.9", "10.7.1.9")
	if _, ok := r.Lease(owner("c")); ok {
		t.Error("a refused request left a lease")
	}
	// A pod that moves to a new container keeps its address, which need not rest.
	r.release("a")
	r.want("c", "[10.7.1.77/24 2001:db8:7::9/64]", "2001:db8:7::9", "10.7.1.77")
	// A different address for the same owner is a new lease.
	r.want("c", "[10.7.1.78/24 2001:db8:7::5/64]", "10.7.1.78")
	r.want("d", "[10.7.1.4/24 2001:db8:7::9/64]", "2001:db8:7::9")
}

func TestOtherSubnets(t *testing.T) {
	r := newRig(t, "10.7.1.0/24")
	r.want("a", "[10.7.1.3/24]")
	r.networks["default"] = []netip.Prefix{netip.MustParsePrefix("10.7.2.0/24"), netip.MustParsePrefix("2001:db8::/120")}
	r.want("b", "[10.7.2.3/24 2001:db8::3/120]")
	r.want("a", "[10.7.2.4/24 2001:db8::4/120]")
	delete(r.networks, "default")
	r.refused("a", ErrNetwork)
	if l := r.Leases(); len(l) != 2 || l[0].ContainerID != "a" {
		t.Errorf("leases %+v, want the leases of a and b, which still run", l)
	}
}

func TestKeep(t *testing.T) {
	r := newRig(t, "10.7.1.0/24")
	r.networks["other"] = []netip.Prefix{netip.MustParsePrefix("10.8.1.0/24")}
	for i := range 5 {
		r.want(fmt.Sprint("p", i), fmt.Sprintf("[10.7.1.%d/24]", i+3))
	}
	if _, err := r.Allocate(context.Background(), Request{Network: "other", Owner: owner("elsewhere")}); err != nil {
		t.Fatal(err)
	}
	gone, err := r.Keep(context.Background(), "default", func(l Lease) bool { return l.ContainerID == "p1" || l.ContainerID == "p3" })
	if err != nil || len(gone) != 3 || gone[0].ContainerID != "p0" || gone[2].ContainerID != "p4" {
		t.Errorf("given back: %v, %v", gone, err)
	}
	r.reopen()
	var left []string
	for _, l := range r.Leases() {
		left = append(left, l.ContainerID)
	}
	if !slices.Equal(left, []string{"p1", "p3", "elsewhere"}) {
		t.Errorf("left: %v", left)
	}
}

func TestGone(t *testing.T) {
	r := newRig(t, "10.7.1.0/24")
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q := Request{Network: "default", Owner: owner("a"), Netns: path}
	l, err := r.Allocate(context.Background(), q)
	if err != nil || r.Gone(l) != "" {
		t.Errorf("%v, gone: %s", err, r.Gone(l))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r.Gone(l) == "" {
		t.Error("its namespace is gone, and it is not")
	}
	r.o.Boot = "boot-2"
	r.reopen()
	if l, _ = r.Lease(owner("a")); r.Gone(l) != "the machine has rebooted since" {
		t.Errorf("after a boot: %q", r.Gone(l))
	}
	// An owner that makes another request counts as existing again.
	q.Netns = ""
	if l, err = r.Allocate(context.Background(), q); err != nil || r.Gone(l) != "" || l.Boot != "boot-2" {
		t.Errorf("asked again: %v, %+v", err, l)
	}
	r.reopen()
	if l, _ = r.Lease(owner("a")); l.Boot != "boot-2" {
		t.Errorf("after that: %+v", l)
	}
}

// TestManyAtOnce: two hundred concurrent pods get their addresses quickly, with few writes.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t, "10.64.0.0/16", "2001:db8:7::/64")
	begin := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Prefix]int{}
	for i := range 200 {
		all.Go(func() {
			l, err := r.try(fmt.Sprint("pod", i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			for _, a := range l {
				seen[a]++
			}
		})
	}
	all.Wait()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("took %v", took)
	} else {
		t.Logf("took %v", took)
	}
	if len(seen) != 400 {
		t.Errorf("%d addresses, want 400", len(seen))
	}
	r.reopen()
	if n := len(r.Leases()); n != 200 {
		t.Errorf("%d leases after a restart, want 200", n)
	}
}

// TestDiskFull: an assignment that cannot be made durable fails, but succeeds later.
func TestDiskFull(t *testing.T) {
	r := newRig(t, "10.7.1.0/29")
	r.want("a", "[10.7.1.3/29]")
	// A directory with that name prevents the creation of the file.
	if err := errors.Join(r.file.f.Close(), os.Mkdir(r.o.Path+".new", 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := r.try("b"); err == nil {
			t.Fatalf("b got %v, and nothing could be written", got)
		}
		if err := r.Release(context.Background(), owner("a")); err == nil {
			t.Fatal("a could give back its address, and nothing could be written")
		}
	}
	if r.Problem() == "" {
		t.Error("it is not reported")
	}
	if l := r.Leases(); len(l) != 1 || l[0].ContainerID != "a" {
		t.Errorf("leases %v, want the lease of a", l)
	}
	if err := os.Remove(r.o.Path + ".new"); err != nil {
		t.Fatal(err)
	}
	r.want("b", "[10.7.1.4/29]")
	r.want("c", "[10.7.1.5/29]")
	if r.Problem() != "" {
		t.Error(r.Problem())
	}
	r.reopen()
	if n := len(r.Leases()); n != 3 {
		t.Errorf("%d leases after a restart, want 3", n)
	}
}
