// SPDX-License-Identifier: Apache-2.0

package loxilight

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// TestChangeTable: every file that the table "What a change touches" of docs/ARCHITECTURE.md names
// exists. A name without a folder is in the folder of the name before it.
func TestChangeTable(t *testing.T) {
	page, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What a change touches\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := regexp.MustCompile("`([a-z0-9A-Z_/.-]+\\.(?:go|h|c|md|yaml))`")
	rows := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || !strings.Contains(cells[2], "`") {
			continue
		}
		rows++
		folder := ""
		for _, m := range named.FindAllStringSubmatch(cells[2], -1) {
			name := m[1]
			if strings.Contains(name, "/") {
				folder = filepath.Dir(name)
			} else {
				name = filepath.Join(folder, name)
			}
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s: %v", cells[1], err)
			}
		}
	}
	if rows < 10 {
		t.Errorf("only %d rows were found", rows)
	}
}

// TestPipelineFiles: every C file that docs/pipeline.md names exists.
func TestPipelineFiles(t *testing.T) {
	page, err := os.ReadFile("docs/pipeline.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("`(?:ebpf-src/)?([a-z0-9_.]+\\.[hc])`").FindAllSubmatch(page, -1)
	if len(found) < 30 {
		t.Errorf("only %d names were found", len(found))
	}
	for _, m := range found {
		if _, err := os.Stat(filepath.Join("ebpf-src", string(m[1]))); err != nil {
			t.Error(err)
		}
	}
}

// TestTimeouts: the table of timeouts in docs/pipeline.md has the values of the data plane and of the
// agent.
func TestTimeouts(t *testing.T) {
	page, err := os.ReadFile("docs/pipeline.md")
	if err != nil {
		t.Fatal(err)
	}
	service, plain := datapath.DefaultIdleTimeout(), datapath.PlainIdleTimeout()
	if service.TCP != service.SCTP || plain.TCP != plain.SCTP {
		t.Error("TCP and SCTP have the same row, and other timeouts")
	}
	for row, times := range map[string][]time.Duration{
		"of a Service: TCP, SCTP":      {service.TCP},
		"of a Service: UDP":            {service.UDP},
		"without a Service: TCP, SCTP": {plain.TCP},
		"without a Service: UDP":       {plain.UDP},
		"ICMP echo":                    {datapath.EchoTimeout},
		"`syn-sent`, `unreplied`":      {datapath.UnansweredTimeout, datapath.TransitoryTimeout, datapath.UnansweredNATTimeout},
		"`syn-received`":               {datapath.HandshakeTimeout, datapath.TransitoryTimeout},
		"UDP `replied`, one exchange":  {datapath.ExchangeTimeout},
		"`fin-wait`":                   {datapath.FINTimeout, datapath.TransitoryTimeout, datapath.FINLongest},
		"`time-wait`":                  {datapath.TimeWaitTimeout},
		"`closed`":                     {datapath.ClosedTimeout},
	} {
		_, line, ok := strings.Cut(string(page), "\n| "+row+" |")
		line, _, _ = strings.Cut(line, "\n")
		if !ok {
			t.Errorf("no row %q", row)
		}
		for _, d := range times {
			if text := inWords(d); !strings.Contains(line, " "+text) {
				t.Errorf("row %q: %s is not in %q", row, text, line)
			}
		}
	}
	_, rest, _ := strings.Cut(strings.ReplaceAll(string(page), "\n", " "), "An endpoint-independent mapping of a NAT without connections ends after ")
	if want := inWords(datapath.MappingTimeout) + " (RFC 4787), a block of ports after " + inWords(datapath.BlockTimeout); !strings.HasPrefix(rest, want) {
		t.Errorf("%.80q, want %q", rest, want)
	}
}

// inWords returns a duration as the pages have it: 2 h 4 min, 120 s.
func inWords(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d > time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d%time.Minute == 0 && d > time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}
