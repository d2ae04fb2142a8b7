// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// TestRuleLog: a packet that matches a rule with log: true is logged as one line with all
// identifying fields. At most ten lines per second are written, and the next line states how many
// packets were omitted.
func TestRuleLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &Server{Options: Options{Log: slog.New(slog.NewTextHandler(&out, nil))}}
		d := &datapath.Decision{Rule: "no-ssh", Action: datapath.ActionReject, Packet: datapath.Packet{
			Device: "eth0", Protocol: datapath.TCP, Length: 74,
			Tuple: datapath.Tuple{Source: netip.MustParseAddrPort("203.0.113.9:40112"), Destination: netip.MustParseAddrPort("192.0.2.1:22")},
		}}
		for range 100 {
			s.logRule(d)
		}
		time.Sleep(time.Second)
		s.logRule(d)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		want := `msg="firewall rule matched" rule=no-ssh action=reject protocol=tcp source=203.0.113.9:40112 destination=192.0.2.1:22 device=eth0 hook=ingress length=74 not_logged=`
		if len(lines) != 11 || !strings.HasSuffix(lines[0], want+"0") || !strings.HasSuffix(lines[10], want+"90") {
			t.Errorf("%d lines, first and last:\n%s\n%s\nwant 11, ending with\n%s90", len(lines), lines[0], lines[len(lines)-1], want)
		}
	})
}
