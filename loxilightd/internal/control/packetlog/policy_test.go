// SPDX-License-Identifier: Apache-2.0

package packetlog

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// TestPolicies: the first packet of a rule, pair and port is reported at once, further ones once a
// second with their number, whatever their source port. All packets are reported, and the log sleeps
// otherwise.
func TestPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		begin := time.Now()
		l := NewPolicies(func(d *datapath.PolicyDecision, p *datapath.Packet, count uint64) {
			got = append(got, fmt.Sprintf("%s %d %s %d", time.Since(begin).Truncate(time.Second), d.Rule, p.Tuple.Destination, count))
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Run(ctx)
		add := func(rule int, port uint16, times int) {
			for i := range times {
				l.Add(&datapath.PolicyDecision{Endpoint: "pod", Verdict: policy.Verdict{Policy: "p", Rule: rule}}, &datapath.Packet{Protocol: datapath.TCP, Tuple: datapath.Tuple{
					Source:      netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(40000+i)),
					Destination: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), port),
				}}, time.Now())
			}
		}
		add(0, 80, 100)
		add(1, 80, 1)
		add(0, 81, 2)
		time.Sleep(1500 * time.Millisecond)
		add(0, 80, 3)
		time.Sleep(10 * time.Second)
		add(0, 80, 1)
		synctest.Wait()
		slices.Sort(got)
		want := []string{
			"0s 0 192.0.2.2:80 1", "0s 0 192.0.2.2:81 1", "0s 1 192.0.2.2:80 1", "11s 0 192.0.2.2:80 1",
			"1s 0 192.0.2.2:80 99", "1s 0 192.0.2.2:81 1", "2s 0 192.0.2.2:80 3",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
	})
}
