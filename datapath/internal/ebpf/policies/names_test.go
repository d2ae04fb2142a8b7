// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

var messages = flag.Int("messages", 20_000, "random DNS messages")

// learner runs the programs that learn names.
type learner struct {
	*looker
	names   *names
	learn   *ebpf.Program
	network uint32
}

// learnedBy is an address of a name.
type learnedBy struct {
	name string
	addr netip.Addr
}

func newLearner(t testing.TB, patterns ...string) *learner {
	l := newLooker(t)
	n := newNames(&Options{Tables: kernel.TablesOf(l.maps)})
	l.ok(n.adopt())
	l.ok(n.enter(&policy.State{Policies: map[string]*policy.Policy{"p": {Rules: [2][]policy.Rule{policy.Egress: {{Peers: []policy.Peer{{Names: patterns}}}}}}}}))
	return &learner{l, n, l.all["test_names"], networkNumber("net")}
}

// message learns from a message, and returns the TTLs, in seconds, of the addresses that are learnt. It
// forgets them afterwards.
func (l *learner) message(message []byte) map[learnedBy]uint32 {
	l.t.Helper()
	before := kernel.NowTick()
	l.run(l.learn, append(make([]byte, 14), message...))
	if took := kernel.NowTick() - before; took > 2 {
		l.t.Fatalf("the program took %d ticks", took)
	}
	return l.found(before)
}

// run runs a program for a frame, and returns its result.
func (l *learner) run(program *ebpf.Program, frame []byte) uint32 {
	l.t.Helper()
	var ctx [44]uint32 // struct __sk_buff
	ctx[2] = l.network
	result, err := program.Run(&ebpf.RunOptions{Data: frame, Context: ctx[:]})
	l.ok(err)
	return result
}

// found returns the TTLs of the addresses that are learnt, counted from a tick, and forgets them.
func (l *learner) found(before uint32) map[learnedBy]uint32 {
	l.t.Helper()
	byNumber := map[uint32]string{}
	for name, id := range l.names.numbers {
		byNumber[id] = name
	}
	found := map[learnedBy]uint32{}
	var keys []kernel.LearnedKey
	l.ok(l.names.tables.Learned.Batches(func(some []kernel.LearnedKey, values []kernel.Learned) error {
		for i, key := range some {
			if key.Network != l.network {
				return fmt.Errorf("network %d", key.Network)
			}
			lasts := kernel.DurationOf(kernel.TicksBetween(before+1, values[i].ExpiryTick)) // its clock is coarse
			found[learnedBy{byNumber[key.Name], key.Addr.Addr()}] = uint32(lasts.Round(time.Second) / time.Second)
			keys = append(keys, key)
		}
		return nil
	}))
	for _, key := range keys {
		l.ok(l.names.tables.Learned.Delete(key))
	}
	for _, id := range l.names.numbers {
		var stats kernel.NameStats
		ok, err := l.names.tables.NameStats.Find(id, &stats)
		if l.ok(err); !ok || int(stats.AddrCount) > 0 {
			l.ok(l.names.tables.NameStats.Put(id, kernel.NameStats{}))
		}
	}
	return found
}

// parsed is what the definition knows of a message: a plain reading of RFC 1035.
type parsed struct {
	b   []byte
	bad bool
}

// name returns the name at an offset, in lower case, and the offset behind it.
func (p *parsed) name(at int) (name string, end int) {
	var labels []string
	length, steps, start := 0, 0, at
	for ; steps < 512; steps++ {
		if at >= len(p.b) {
			break
		}
		c := int(p.b[at])
		switch {
		case c == 0:
			if end == 0 {
				end = at + 1
			}
			return strings.ToLower(strings.Join(labels, ".")), end
		case c >= 0xc0:
			if end == 0 {
				end = at + 2
			}
			if at+2 > len(p.b) {
				p.bad = true
				return "", 0
			}
			to := (c&0x3f)<<8 | int(p.b[at+1])
			if to < 12 || to >= start {
				p.bad = true
				return "", 0
			}
			at, start = to, to
			continue
		case c >= 0x40 || length+1+c > 254 || at+1+c > len(p.b):
			p.bad = true
			return "", 0
		}
		labels = append(labels, fmt.Sprintf("%q", lower(p.b[at+1:at+1+c])))
		length += 1 + c
		steps += c
		at += 1 + c
	}
	p.bad = true
	return "", 0
}

// lower folds the letters of ASCII only.
func lower(b []byte) string {
	c := make([]byte, len(b))
	for i := range b {
		if c[i] = b[i]; 'A' <= b[i] && b[i] <= 'Z' {
			c[i] |= 0x20
		}
	}
	return string(c)
}

// definition returns the addresses to be learnt from a message for patterns.
func definition(b []byte, patterns map[string]uint32) map[learnedBy]uint32 {
	none := map[learnedBy]uint32{}
	if len(b) < 12 || binary.BigEndian.Uint16(b[2:])&0xf80f != 0x8000 || binary.BigEndian.Uint16(b[4:]) != 1 {
		return none
	}
	p := &parsed{b: b}
	question, at := p.name(12)
	if p.bad || at+4 > len(b) || binary.BigEndian.Uint16(b[at+2:]) != 1 {
		return none
	}
	at += 4
	type record struct {
		owner, target string
		ttl           uint32
		addrs         []netip.Addr
	}
	var records []record
	aliases := 0
	for range binary.BigEndian.Uint16(b[6:]) {
		owner, end := p.name(at)
		if p.bad || end+10 > len(b) {
			return none
		}
		kind, class, n := binary.BigEndian.Uint16(b[end:]), binary.BigEndian.Uint16(b[end+2:]), int(binary.BigEndian.Uint16(b[end+8:]))
		r := record{owner: owner, ttl: binary.BigEndian.Uint32(b[end+4:])}
		if r.ttl >= 1<<31 {
			r.ttl = 0
		}
		r.ttl = min(r.ttl, 7*86400)
		data := end + 10
		if at = data + n; at > len(b) {
			return none
		}
		switch {
		case class != 1:
		case kind == 1 && n == 4, kind == 28 && n == 16:
			r.addrs = append(r.addrs, addrOf(b[data:at]))
		case kind == 65:
			hints, ok := p.hints(data, at)
			if !ok {
				return none
			}
			r.addrs = hints
		case kind == 1, kind == 28:
			return none
		case kind == 5:
			if r.target, end = p.name(data); p.bad || end != at || aliases == 16 {
				return none
			}
			aliases++
			r.target += "!" // not empty
		}
		records = append(records, r)
	}
	linked, last := map[string]uint32{question: 7 * 86400}, question
	for range 16 {
		i := 0
		for ; i < len(records); i++ {
			_, known := linked[strings.TrimSuffix(records[i].target, "!")]
			if records[i].target != "" && records[i].owner == last && !known {
				break
			}
		}
		if i == len(records) {
			break
		}
		before := linked[last]
		last = strings.TrimSuffix(records[i].target, "!")
		linked[last] = min(before, records[i].ttl)
	}
	for pattern := range patterns {
		if !matchesName(pattern, question) {
			continue
		}
		for _, r := range records {
			for _, addr := range r.addrs {
				if ttl, ok := linked[r.owner]; ok {
					key := learnedBy{pattern, addr}
					none[key] = max(none[key], min(ttl, r.ttl))
				}
			}
		}
	}
	return none
}

// addrOf returns an address as in maps.
func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

// hints returns the addresses in an HTTPS record (RFC 9460), whose data are from at to end.
func (p *parsed) hints(at, end int) (addrs []netip.Addr, ok bool) {
	_, at = p.name(at + 2)
	if p.bad || at > end {
		return nil, false
	}
	for at < end {
		if at+4 > end {
			return nil, false
		}
		key, n := binary.BigEndian.Uint16(p.b[at:]), int(binary.BigEndian.Uint16(p.b[at+2:]))
		if at += 4; at+n > end {
			return nil, false
		}
		if size := map[uint16]int{4: 4, 6: 16}[key]; size > 0 {
			if n == 0 || n%size != 0 {
				return nil, false
			}
			for i := 0; i < n; i += size {
				addrs = append(addrs, addrOf(p.b[at+i:at+i+size]))
			}
		}
		at += n
	}
	return addrs, true
}

// matchesName reports whether a name in a rule stands for a name as parsed.name returns it.
func matchesName(pattern, name string) bool {
	base, below := strings.CutPrefix(pattern, wildcard)
	var labels []string
	for label := range strings.SplitSeq(base, ".") {
		labels = append(labels, fmt.Sprintf("%q", label))
	}
	want := strings.Join(labels, ".")
	if below {
		return strings.HasSuffix(name, "."+want)
	}
	return name == want
}

// writer makes random DNS messages.
type writer struct {
	*rand.Rand
	b     []byte
	names []int // offsets of names
}

var words = []string{"a.example", "x.a.example", "y.x.a.example", "b.example", "example", "cdn.test", "a.examplex", "xa.example"}

func (w *writer) name() {
	name := words[w.IntN(len(words))]
	w.names = append(w.names, len(w.b))
	if w.IntN(3) == 0 && len(w.names) > 1 { // a pointer, behind some labels or none
		if w.IntN(2) == 0 {
			w.b = append(w.b, 1, "axAX"[w.IntN(4)])
		}
		to := w.names[w.IntN(len(w.names)-1)]
		w.b = append(w.b, 0xc0|byte(to>>8), byte(to))
		return
	}
	for label := range strings.SplitSeq(name, ".") {
		w.b = append(w.b, byte(len(label)))
		for i := range len(label) {
			c := label[i]
			if w.IntN(2) == 0 {
				c &^= 0x20 // upper case
			}
			w.b = append(w.b, c)
		}
	}
	w.b = append(w.b, 0)
}

func (w *writer) put16(v int) { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }

func (w *writer) message() []byte {
	records := w.IntN(6)
	if w.IntN(20) == 0 {
		records = 12 + w.IntN(12)
	}
	w.b, w.names = []byte{1, 2, 0x81, 0x80, 0, 1, 0, byte(records), 0, 0, 0, 0}, nil
	w.name()
	w.put16([]int{1, 28}[w.IntN(2)])
	w.put16(1)
	for range records {
		if w.IntN(3) == 0 {
			w.b = append(w.b, 0xc0, 12) // the question
		} else {
			w.name()
		}
		kind := []int{1, 1, 28, 28, 5, 5, 16, 65, 65}[w.IntN(9)]
		w.put16(kind)
		w.put16([]int{1, 1, 1, 1, 1, 1, 1, 3}[w.IntN(8)])
		w.b = binary.BigEndian.AppendUint32(w.b, []uint32{0, 2, 60, 3600, 604800, 604801, 1 << 31, 1<<32 - 1}[w.IntN(8)])
		at := len(w.b)
		w.put16(0)
		switch kind {
		case 1:
			w.b = append(w.b, 192, 0, 2, byte(w.IntN(8)))
		case 28:
			w.b = append(w.b, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(w.IntN(8)))
		case 5:
			w.name()
		case 16:
			w.b = append(w.b, "\x04text"...)
		case 65:
			w.put16(1)
			w.b = append(w.b, "\x04edge\x04test\x00"[w.IntN(2)*10:]...) // or the root
			for range w.IntN(4) {
				key := []int{1, 3, 4, 4, 6, 6}[w.IntN(6)]
				n := map[int]int{1: 3, 3: 2, 4: 4 * (1 + w.IntN(3)), 6: 16 * (1 + w.IntN(2))}[key]
				if w.IntN(20) == 0 {
					n = w.IntN(20) // malformed, or empty
				}
				w.put16(key)
				w.put16(n)
				for range n {
					w.b = append(w.b, byte(w.IntN(4)))
				}
			}
		}
		binary.BigEndian.PutUint16(w.b[at:], uint16(len(w.b)-at-2))
	}
	switch w.IntN(4) {
	case 0: // malformed, perhaps
		for range 1 + w.IntN(3) {
			w.b[w.IntN(len(w.b))] = byte(w.IntN(256))
		}
	case 1:
		if w.IntN(4) == 0 {
			w.b = w.b[:1+w.IntN(len(w.b)-1)]
		}
	}
	return w.b
}

// TestNamesLearnt compares what the program learns from random messages, well-formed and malformed, with
// the definition.
func TestNamesLearnt(t *testing.T) {
	l := newLearner(t, "a.example", "*.a.example", "*.example", "example", "b.example", "*.test")
	w, learnt := &writer{Rand: rand.New(rand.NewPCG(*from, 53))}, 0
	for i := range *messages {
		m := w.message()
		want := definition(m, l.names.numbers)
		if got := l.message(m); !maps.Equal(got, want) {
			t.Fatalf("message %d, %q: %v, want %v", i, m, got, want)
		}
		learnt += len(want)
	}
	t.Logf("%d addresses in %d messages", learnt, *messages)
	if learnt < *messages/4 {
		t.Error("the messages test too little")
	}
}

// TestNetworksWithOneNumber: two networks whose names have the same hash are refused.
func TestNetworksWithOneNumber(t *testing.T) {
	of := map[uint32]string{}
	for i := 0; ; i++ {
		name := fmt.Sprint("Bridge/br", i)
		other, known := of[networkNumber(name)]
		of[networkNumber(name)] = name
		if !known {
			continue
		}
		n := newLearner(t, "a.example").names
		resolvers := map[string][]netip.Addr{other: {netip.MustParseAddr("10.0.0.1")}, name: {netip.MustParseAddr("10.0.0.2")}}
		err := n.enter(&policy.State{Resolvers: resolvers})
		if err == nil || !strings.Contains(err.Error(), other) || !strings.Contains(err.Error(), name) || len(n.resolvers) > 0 {
			t.Errorf("%v; resolvers %v", err, n.resolvers)
		}
		delete(resolvers, other)
		if err := n.enter(&policy.State{Resolvers: resolvers}); err != nil || len(n.resolvers) != 1 {
			t.Errorf("one network: %v; resolvers %v", err, n.resolvers)
		}
		return
	}
}

// TestNamesFull: a name has at most 1,000 addresses. Addresses within their TTL are never deleted for
// others; expired ones are.
func TestNamesFull(t *testing.T) {
	l := newLearner(t, "a.example")
	p := &Policies{Options: Options{Tables: l.names.tables, Maps: l.maps}}
	defer func() { l.ok(p.Close()) }()
	var id uint32
	for _, id = range l.names.numbers {
		for i := range 1000 {
			l.ok(l.names.tables.Learned.Put(kernel.LearnedKey{
				Addr: kernel.AddrOf(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})), Name: id, Network: l.network,
			}, kernel.Learned{ExpiryTick: kernel.NowTick() + 1000}))
		}
		l.ok(l.names.tables.NameStats.Put(id, kernel.NameStats{AddrCount: 1000}))
	}
	run := func(name string) {
		w := &writer{b: []byte{1, 2, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}}
		for label := range strings.SplitSeq(name, ".") {
			w.b = append(append(w.b, byte(len(label))), label...)
		}
		w.b = append(w.b, 0, 0, 1, 0, 1, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7)
		var ctx [44]uint32
		ctx[2] = l.network
		_, err := l.learn.Run(&ebpf.RunOptions{Data: append(make([]byte, 14), w.b...), Context: ctx[:]})
		l.ok(err)
	}
	state := func() (stats kernel.NameStats, has bool) {
		_, err := l.names.tables.NameStats.Find(id, &stats)
		l.ok(err)
		var v kernel.Learned
		has, err = l.names.tables.Learned.Find(kernel.LearnedKey{Addr: kernel.AddrOf(netip.MustParseAddr("192.0.2.7")), Name: id, Network: l.network}, &v)
		l.ok(err)
		return stats, has
	}
	run("a.example")
	if s, has := state(); has || s.AddrCount != 1000 || s.RefusedCount != 1 {
		t.Errorf("full: learnt %t, %+v; want 1,000 addresses, one refused", has, s)
	}
	l.ok(l.names.tables.Learned.Put(kernel.LearnedKey{Addr: kernel.AddrOf(netip.MustParseAddr("10.0.0.7")), Name: id, Network: l.network},
		kernel.Learned{ExpiryTick: kernel.NowTick() - 1}))
	testTicks(10)
	run("a.example")
	if s, has := state(); !has || s.AddrCount != 1000 || s.RefusedCount != 1 {
		t.Errorf("one has expired: learnt %t, %+v; want 1,000 addresses, one of them new", has, s)
	}
	l.ok(p.sweep(0))
	if s, has := state(); !has || s.AddrCount != 1000 {
		t.Errorf("after a sweep: learnt %t, %+v", has, s)
	}
	l.ok(l.names.retire(&policy.State{}))
	l.ok(p.sweep(expiredKept))
	l.ok(l.names.tables.Learned.Batches(func(keys []kernel.LearnedKey, _ []kernel.Learned) error {
		if len(keys) > 0 {
			return fmt.Errorf("%d addresses are left of a name of no policy", len(keys))
		}
		return nil
	}))
}

// testTicks waits until some ticks have passed.
func testTicks(n uint32) {
	for begin := kernel.NowTick(); kernel.NowTick()-begin < n; {
		time.Sleep(10 * time.Millisecond)
	}
}

// TestNameTexts: names are written as in messages, and read back.
func TestNameTexts(t *testing.T) {
	for _, name := range append([]string{"a", strings.Repeat("a.", 126) + "b", strings.Repeat("a", 63) + ".org"}, words...) {
		text := textOf(name)
		if got := nameOf(text); got != name {
			t.Errorf("%q: %q", name, got)
		}
		if int(text.Text[0]) != strings.Index(name+".", ".") {
			t.Errorf("%q: %v", name, text.Text[:8])
		}
	}
}
