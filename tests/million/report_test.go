// SPDX-License-Identifier: Apache-2.0

package million

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cost is the cost of packets with a number of connections.
type cost struct {
	each time.Duration // of our programs, a packet
	rate float64       // round trips a second
}

// measure measures packets on random connections, one request at a time.
func (r *run) measure() {
	r.t.Helper()
	requests := min(40_000, 2*r.total)
	call[bool](r, r.clients, "Quiet", func(int) any { return true })
	send := func(count int) (took time.Duration) {
		for i, w := range r.clients { // one after the other, as with one connection
			if n := r.share(r.opened, i); n > 0 {
				one := Requests{To: n, Random: max(1, count*n/r.opened), Batch: 1}
				for _, d := range call[time.Duration](r, []*worker{w}, "Send", func(int) any { return one }) {
					took += d
				}
			}
		}
		return took
	}
	r.sendOnAll() // the first packets of a connection take longer
	send(requests / 10)
	var took time.Duration
	packets, each := r.packetCost(r.t, func() { took = send(requests) })
	call[bool](r, r.clients, "Quiet", func(int) any { return false })
	now := cost{each: each, rate: float64(requests) / took.Seconds()}
	if r.opened == 1 {
		r.base = now
	}
	segments, bytes := r.tableBytes(r.t)
	r.t.Logf("%d connections: programs take %d ns a packet (%.2f of 1 connection, %d packets); %.0f round trips a second between processes (%.2f of 1 connection); table: %d segments, %d KB",
		r.opened, now.each.Nanoseconds(), float64(now.each)/float64(r.base.each), packets,
		now.rate, now.rate/r.base.rate, segments, bytes>>10)
}

// idle measures the processor time of the daemon while all connections are open, without packets.
func (r *run) idle() {
	r.t.Helper()
	const few, many = 2 * time.Second, time.Minute
	span := few
	if r.total >= fast {
		span = many
	}
	call[bool](r, r.clients, "Quiet", func(int) any { return true })
	time.Sleep(few) // requests that have begun end
	before := processorTime(r.t, r.Process().PID())
	time.Sleep(span)
	used := processorTime(r.t, r.Process().PID()) - before
	call[bool](r, r.clients, "Quiet", func(int) any { return false })
	r.t.Logf("the daemon of %d idle connections takes %s of processor time in %s: %.2f %% of a processor", r.opened, used, span, 100*used.Seconds()/span.Seconds())
}

// processorTime returns the processor time that a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name of the program may contain spaces
	fields := strings.Fields(rest)
	var ticks time.Duration
	for _, field := range fields[11:13] { // in user and in system mode, in units of 10 ms
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("processor time of process %d: %v", pid, err)
		}
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond
}

// sendOnAll sends a request on each connection.
func (r *run) sendOnAll() {
	r.t.Helper()
	call[time.Duration](r, r.clients, "Send", func(i int) any { return Requests{To: r.share(r.opened, i), Batch: 256} })
}

// checkAll sends a request on each connection, and fails the test if one has been lost.
func (r *run) checkAll() {
	r.t.Helper()
	begin := time.Now()
	r.sendOnAll()
	checked := time.Since(begin)
	lost := r.logFailures()
	open, exchanges, members, rounds := 0, 0, 0, math.MaxInt
	for _, tally := range r.tallies() {
		open, exchanges, members = open+tally.Opened, exchanges+tally.Exchanges, members+tally.Members
		rounds = min(rounds, tally.Rounds)
	}
	r.t.Logf("background requests: at least %d rounds on %d connections", rounds, members)
	r.t.Logf("%d of %d connections work after the last restart (checked in %s); %d requests and right answers in all",
		open, r.total, checked.Round(time.Millisecond), exchanges)
	if open != r.total || lost > 0 {
		r.t.Errorf("%d of %d connections are left", open, r.total)
	}
	accepted, broken := 0, 0
	for _, c := range call[Count](r, r.servers, "Count", func(int) any { return 0 }) {
		accepted, broken = accepted+c.Accepted, broken+c.Broken
	}
	if accepted != r.total || broken != 0 {
		r.t.Errorf("backends have accepted %d connections, want %d; %d have ended", accepted, r.total, broken)
	}
	r.expectNoResets()
}

// expectNoResets fails the test if the kernel of a machine has sent or received a reset.
func (r *run) expectNoResets() {
	r.t.Helper()
	for name, counters := range map[string]map[string]int{
		"clients": tcpCounters(r.t, r.clientNS), "backends": tcpCounters(r.t, r.backendNS),
	} {
		for _, counter := range []string{"OutRsts", "EstabResets", "AttemptFails"} {
			if counters[counter] != 0 {
				r.t.Errorf("%s: the kernel's counter %s is %d, want 0", name, counter, counters[counter])
			}
		}
		r.t.Logf("%s: %d resets; %d of %d segments were sent again", name, counters["OutRsts"]+counters["EstabResets"], counters["RetransSegs"], counters["OutSegs"])
	}
}

// tallies returns the tallies of the clients that answer.
func (r *run) tallies() []Tally {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	all, err := callAll[Tally](ctx, r.clients, "Tally", func(int) any { return 0 })
	if err != nil {
		r.t.Errorf("tallies of the clients: %v", err)
	}
	return all
}

// logFailures fails the test if connections have failed, and returns their number.
func (r *run) logFailures() (count int) {
	r.t.Helper()
	failures := map[string]int{}
	var examples []string
	for _, tally := range r.tallies() {
		for kind, n := range tally.Failures {
			failures[kind] += n
			count += n
		}
		examples = append(examples, tally.Examples...)
	}
	r.t.Logf("connections: %d lost, %d refused, %d reset, %d with a wrong answer, %d other failures",
		failures["lost"], failures["refused"], failures["reset"], failures["wrong answer"], failures["other"])
	if count > 0 {
		r.t.Errorf("%d connections have failed, for example:\n%s", count, strings.Join(examples, "\n"))
	}
	return count
}

// report logs the rate at which connections were opened, the sizes of the table, and the counters
// of dropped packets.
func (r *run) report() {
	r.t.Helper()
	rates, all := r.rates()
	r.t.Logf("new connections a second, for each %d: %s; all: %.0f", r.total/10, strings.Join(rates, " "), all)
	r.keepSizes()
	r.t.Logf("sizes of the connection table:\n%s", strings.Join(r.sizes, "\n"))
	segments, bytes := r.tableBytes(r.t)
	r.t.Logf("connection table: %d segments, %d bytes, %.0f bytes a connection", segments, bytes, float64(bytes)/float64(r.total))
	counters := r.Counters("", "")
	maps.DeleteFunc(counters.Drops, func(_ string, n uint64) bool { return n == 0 })
	r.t.Logf("packets of the node by verdict: %v; dropped: %v", counters.Verdicts, counters.Drops)
}

// rates returns the number of new connections a second, for each tenth of the connections and for
// all. The time of measurements does not count.
func (r *run) rates() (tenths []string, all float64) {
	r.t.Helper()
	var stamps []Stamp // with the number of connections since the client's previous stamp
	for _, tally := range r.tallies() {
		before := 0
		for _, s := range tally.Stamps {
			stamps = append(stamps, Stamp{At: s.At, Opened: s.Opened - before})
			before = s.Opened
		}
	}
	slices.SortFunc(stamps, func(a, b Stamp) int { return a.At.Compare(b.At) })
	opened, counted, before := 0, 0, time.Duration(0)
	for _, s := range stamps {
		if opened += s.Opened; opened >= (len(tenths)+1)*r.total/10 {
			at := r.opening(s.At)
			tenths = append(tenths, fmt.Sprintf("%.0f", float64(opened-counted)/(at-before).Seconds()))
			counted, before = opened, at
		}
	}
	return tenths, float64(opened) / before.Seconds()
}

// opening returns how long connections had been opened at a time.
func (r *run) opening(at time.Time) (sum time.Duration) {
	for _, p := range r.phases {
		if at.After(p.end) {
			sum += p.end.Sub(p.begin)
		} else if at.After(p.begin) {
			sum += at.Sub(p.begin)
		}
	}
	return sum
}
