// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"cmp"
	"net/netip"
	"slices"
)

// key is a value of a field; its first bit is the most significant bit of hi.
type key struct{ hi, lo uint64 }

func (k key) compare(o key) int {
	if c := cmp.Compare(k.hi, o.hi); c != 0 {
		return c
	}
	return cmp.Compare(k.lo, o.lo)
}

// after returns the first key after all keys that begin with the first n bits of k, and false if no
// such key exists.
func (k key) after(n int) (key, bool) {
	switch {
	case n == 0:
		return key{}, false
	case n <= 64:
		hi := k.hi>>(64-n)<<(64-n) + 1<<(64-n)
		return key{hi, 0}, hi != 0
	}
	shift := 128 - n
	lo := k.lo>>shift<<shift + 1<<shift
	if lo == 0 {
		return key{k.hi + 1, 0}, k.hi+1 != 0
	}
	return key{k.hi, lo}, true
}

// number returns v, a value of the given number of bits, as a key.
func number(v uint64, bits int) key { return key{hi: v << (64 - bits)} }

func keyOfAddr(a netip.Addr) key {
	if a.Is4() {
		b := a.As4()
		return key{hi: uint64(b[0])<<56 | uint64(b[1])<<48 | uint64(b[2])<<40 | uint64(b[3])<<32}
	}
	return keyOfBytes(a.As16())
}

func keyOfBytes(b [16]byte) (k key) {
	for i := range 8 {
		k.hi = k.hi<<8 | uint64(b[i])
		k.lo = k.lo<<8 | uint64(b[8+i])
	}
	return k
}

// run contains all keys from start up to the start of the next run. Its value is first a vector,
// later the value of a leaf.
type run struct {
	start key
	value uint32
}

// compact joins adjacent runs with the same value; of several runs with the same start, the last
// one applies.
func compact(runs []run) []run {
	out := runs[:0]
	for i, r := range runs {
		if i+1 < len(runs) && runs[i+1].start == r.start {
			continue
		}
		if n := len(out); n > 0 && out[n-1].value == r.value {
			continue
		}
		out = append(out, r)
	}
	return out
}

// owned is a prefix and its owner: a rule, or the rules of a vector.
type owned struct {
	start key
	bits  int
	rule  int // -1: see value
	value uint32
}

func (p *owned) compare(o *owned) int {
	return cmp.Or(p.start.compare(o.start), cmp.Compare(p.bits, o.bits))
}

// vectorOf returns the vector of the rules that own identical prefixes.
func vectorOf(v *vectors, same []owned) (value uint32) {
	rules := v.changing()
	for _, p := range same {
		if p.rule >= 0 {
			rules.set(p.rule, true)
		} else {
			value = v.or(value, p.value)
		}
	}
	return v.or(value, rules.vector())
}

// prefixRuns returns which rules match each key: the rules of base, and the rules of every
// prefix that contains the key.
func prefixRuns(v *vectors, base uint32, prefixes []owned) []run {
	return nestedRuns(base, prefixes, func(outer uint32, same []owned) uint32 {
		value := same[0].value
		if len(same) > 1 || same[0].rule >= 0 {
			value = vectorOf(v, same)
		}
		return v.or(outer, value)
	})
}

// nestedRuns returns the value of each key: base for keys in no prefix, otherwise what inside returns
// for the longest prefix that contains the key, from the value around it and from those that own it.
func nestedRuns(base uint32, prefixes []owned, inside func(outer uint32, same []owned) uint32) []run {
	slices.SortFunc(prefixes, func(a, b owned) int { return a.compare(&b) })
	type open struct {
		end     key
		endless bool // up to the last key
		value   uint32
	}
	runs := make([]run, 1, 2*len(prefixes)+1)
	runs[0].value = base
	stack := []open{{endless: true, value: base}}
	closeUntil := func(done func(open) bool) {
		for top := stack[len(stack)-1]; !top.endless && done(top); top = stack[len(stack)-1] {
			stack = stack[:len(stack)-1]
			runs = append(runs, run{top.end, stack[len(stack)-1].value})
		}
	}
	for i := 0; i < len(prefixes); {
		p, n := &prefixes[i], 1
		for i+n < len(prefixes) && prefixes[i+n].compare(p) == 0 {
			n++
		}
		same := prefixes[i : i+n]
		i += n
		closeUntil(func(o open) bool { return o.end.compare(p.start) <= 0 })
		value := inside(stack[len(stack)-1].value, same)
		end, ok := p.start.after(p.bits)
		stack = append(stack, open{end, !ok, value})
		runs = append(runs, run{p.start, value})
	}
	closeUntil(func(open) bool { return true })
	return compact(runs)
}

// span is a range of values, from first to last, that a rule matches.
type span struct {
	first, last uint64
	rule        int
}

// spanRuns returns which rules match each value of the given number of bits: the rules of base and
// of every span that contains the value. All keys begin with the first prefixBits bits of prefix.
func spanRuns(base *changing, spans []span, prefix key, prefixBits, bits int) []run {
	type event struct {
		at   uint64
		rule int
		on   bool
	}
	events := make([]event, 0, 2*len(spans))
	for _, s := range mergeSpans(spans) {
		events = append(events, event{s.first, s.rule, true})
		if s.last+1 < 1<<bits {
			events = append(events, event{s.last + 1, s.rule, false})
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		if a.at != b.at {
			return cmp.Compare(a.at, b.at)
		}
		return a.rule - b.rule
	})
	at := func(v uint64) key { return key{hi: prefix.hi | v<<(64-prefixBits-bits)} }
	runs := []run{{at(0), base.vector()}}
	for i, e := range events {
		base.set(e.rule, e.on)
		if i+1 == len(events) || events[i+1].at != e.at {
			runs = append(runs, run{at(e.at), base.vector()})
		}
	}
	for _, e := range events {
		base.set(e.rule, false) // restores base: it contains no rule of a span
	}
	return compact(runs)
}

// mergeSpans joins spans of the same rule that overlap or touch.
func mergeSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		if a.rule != b.rule {
			return a.rule - b.rule
		}
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && out[n-1].rule == s.rule && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}
