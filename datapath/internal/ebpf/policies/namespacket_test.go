// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// answer is a response that contains the address of a name, and text of some length.
type answer struct {
	number int
	text   []byte
}

func (a answer) addr() netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, byte(a.number >> 8), byte(a.number)})
}

func (a answer) message() []byte {
	b := testpkt.DNSQuery(fmt.Sprintf("n%d.a.example", a.number), testpkt.DNSA)
	b[2], b[3] = 0x81, 0x80
	for text := a.text; len(text) > 0; text = text[min(len(text), 30000):] {
		b = testpkt.DNSRecord(b, []byte{0xc0, 12}, testpkt.DNSText, 7, text[:min(len(text), 30000)])
	}
	return testpkt.DNSRecord(b, []byte{0xc0, 12}, testpkt.DNSA, 7, a.addr().AsSlice())
}

// prefixed is the message in a TCP connection.
func (a answer) prefixed() []byte {
	m := a.message()
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)
}

// has reports whether the addresses of answers have been learnt, and no others. They are forgotten.
func (l *learner) has(before uint32, answers ...answer) (missing, more []netip.Addr) {
	l.t.Helper()
	found := l.found(before)
	for _, a := range answers {
		if _, ok := found[learnedBy{"*.a.example", a.addr()}]; !ok {
			missing = append(missing, a.addr())
		}
		delete(found, learnedBy{"*.a.example", a.addr()})
	}
	for by := range found {
		more = append(more, by.addr)
	}
	return missing, more
}

// segments are the segments of a TCP connection from a DNS server.
type segments struct {
	*rand.Rand
	is6    bool
	port   uint16
	seq    uint32 // of the SYN
	stream []byte
	cuts   map[int]bool
}

func (s *segments) frame(flags uint8, seq uint32, data []byte) []byte {
	tcp := testpkt.TCP{Source: 53, Destination: s.port, Seq: seq, Ack: 1, Flags: flags}
	if s.IntN(2) == 0 {
		tcp.Options = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	}
	return s.build(tcp, data)
}

func (s *segments) build(l4 testpkt.Layer, data []byte) []byte {
	link := testpkt.Ethernet{Destination: [6]byte{2, 0, 0, 0, 0, 1}, Source: [6]byte{2, 0, 0, 0, 0, 2}}
	if s.is6 {
		return testpkt.Build(link, testpkt.IPv6{Source: netip.MustParseAddr("2001:db8::53"), Destination: netip.MustParseAddr("2001:db8::7"), HopLimit: 64}, l4, testpkt.Payload(data))
	}
	return testpkt.Build(link, testpkt.IPv4{Source: netip.MustParseAddr("10.96.0.10"), Destination: netip.MustParseAddr("10.1.0.7"), TTL: 64}, l4, testpkt.Payload(data))
}

// frames returns the frames of the stream, in order.
func (s *segments) frames() (all [][]byte) {
	for at := 0; at < len(s.stream); {
		end := min(at+1+s.IntN(1400), len(s.stream))
		if s.IntN(20) == 0 {
			end = min(at+1+s.IntN(3), len(s.stream))
		}
		for i := at + 1; i < end; i++ {
			if s.cuts[i] {
				end = i
			}
		}
		all = append(all, s.frame(0x10, s.seq+1+uint32(at), s.stream[at:end]))
		at = end
	}
	return all
}

// TestNamesInSegments: each response in a TCP connection is learnt, however it is cut into segments, even
// if a segment is sent again or two are exchanged. What looks like a response, but is within one, is not
// learnt.
func TestNamesInSegments(t *testing.T) {
	l := newLearner(t, "*.a.example")
	program, number, learnt := l.all["test_names_packet"], 0, 0
	for i := range max(*messages/50, 100) {
		s := &segments{Rand: rand.New(rand.NewPCG(*from, uint64(i))), is6: i%2 == 1, port: uint16(1024 + i), cuts: map[int]bool{}}
		s.seq = s.Uint32()
		if i%3 == 0 {
			s.seq = -uint32(s.IntN(3000)) // wraps around
		}
		before := kernel.NowTick()
		var want []answer
		for range 1 + s.IntN(5) {
			a := answer{number: number}
			number = (number + 2) % 60000
			switch s.IntN(4) {
			case 0:
				forged := answer{number: a.number + 1}.prefixed()
				a.text = slices.Concat(make([]byte, s.IntN(2000)), forged, make([]byte, s.IntN(2000)))
				if s.IntN(4) == 0 {
					a.text = append(make([]byte, 16000), a.text...) // too long
				}
			case 1:
				a.text = make([]byte, s.IntN(15000))
			}
			m := a.prefixed()
			if len(m)-2 <= 16376 {
				want = append(want, a)
			}
			if at := bytes.Index(m, answer{number: a.number + 1}.prefixed()); at >= 0 {
				s.cuts[len(s.stream)+at] = true // a segment begins with the forged response
			}
			s.stream = append(s.stream, m...)
		}
		l.run(program, s.frame(0x12, s.seq, nil))
		frames := s.frames()
		switch i % 4 {
		case 1: // sent again
			at := s.IntN(len(frames))
			frames = slices.Insert(frames, at+s.IntN(len(frames)-at), frames[at])
		case 2: // exchanged
			if at := s.IntN(len(frames)); at > 0 && len(want) == 1 {
				frames[at-1], frames[at] = frames[at], frames[at-1]
			}
		}
		for _, f := range frames {
			if l.run(program, f) != 1 {
				t.Fatalf("seed %d: the program does not take the segment", i)
			}
		}
		missing, more := l.has(before, want...)
		if len(missing) > 0 || len(more) > 0 {
			t.Fatalf("seed %d, %d segments: %v are not learnt, %v are", i, len(frames), missing, more)
		}
		learnt += len(want)
	}
	if learnt < 50 {
		t.Errorf("%d responses say little", learnt)
	}
}

// TestNamesWithoutBeginning: responses in a connection whose beginning was not seen, or of which a
// segment is missing, are not learnt.
func TestNamesWithoutBeginning(t *testing.T) {
	l := newLearner(t, "*.a.example")
	program, before := l.all["test_names_packet"], kernel.NowTick()
	s := &segments{Rand: rand.New(rand.NewPCG(1, 2)), port: 4660, seq: 7, stream: slices.Concat(answer{number: 1}.prefixed(), answer{2, make([]byte, 4000)}.prefixed(), answer{number: 3}.prefixed())}
	for _, f := range s.frames() {
		l.run(program, f)
	}
	if _, more := l.has(before); len(more) > 0 {
		t.Errorf("without a SYN: %v", more)
	}
	l.run(program, s.frame(0x12, s.seq, nil))
	frames := s.frames()
	for _, f := range frames[1:] {
		l.run(program, f)
	}
	if _, more := l.has(before); len(more) > 0 {
		t.Errorf("without the first segment: %v", more)
	}
	l.run(program, frames[0])
	if missing, more := l.has(before, answer{number: 1}); len(missing)+len(more) > 0 {
		t.Errorf("the first response arrives last: %v are not learnt, %v are", missing, more)
	}
}

// TestNamesInFragments: a response in the fragments of a datagram is learnt if all arrive, the first one
// first or second; not if one is missing, or if fragments overlap.
func TestNamesInFragments(t *testing.T) {
	l := newLearner(t, "*.a.example")
	program := l.all["test_names_packet"]
	for i := range max(*messages/50, 100) {
		s := &segments{Rand: rand.New(rand.NewPCG(*from, uint64(i))), is6: i%2 == 1, port: 4660}
		a := answer{i, make([]byte, 1500+s.IntN(2400))}
		frames := testpkt.Fragments(s.build(testpkt.UDP{Source: 53, Destination: s.port}, a.message()), 600+s.IntN(901), uint32(i))
		before, want := kernel.NowTick(), []answer{a}
		at := s.IntN(len(frames))
		switch i % 4 {
		case 1: // exchanged
			if at > 0 {
				frames[at-1], frames[at] = frames[at], frames[at-1]
			}
		case 2: // missing
			frames, want = slices.Delete(frames, at, at+1), nil
		case 3: // another sender's fragment comes first
			if len(frames) > 2 {
				frames, want = slices.Insert(frames, min(at, 1), overlap(frames[1])), nil
			}
		}
		for _, f := range frames {
			if l.run(program, f) != 1 {
				t.Fatalf("seed %d: the program does not take the fragment", i)
			}
		}
		if missing, more := l.has(before, want...); len(missing)+len(more) > 0 {
			t.Fatalf("seed %d, %d fragments: %v are not learnt, %v are", i, len(frames), missing, more)
		}
	}
}

// overlap returns a fragment with other content.
func overlap(frame []byte) []byte {
	f := slices.Clone(frame)
	f[len(f)-1] ^= 0xff
	return f
}
