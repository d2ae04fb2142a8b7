// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/loxilight/loxilight/internal/testnet"
)

// relation describes the relative location of two stations, as a row of the matrix.
func relation(from, to *station) string {
	names := map[kindOf]string{aPod: "pod", aNode: "node", ofPods: "node among pods", outside: "outside"}
	row := names[from.kind] + " → " + names[to.kind]
	switch {
	case from.node == 0 || to.node == 0:
	case from.node == to.node:
		row += ", here"
	default:
		row += ", there"
	}
	return row
}

// expected reports whether seen is an address that the station to may see for the station from.
func (c *cluster) expected(from, to *station, seen netip.Addr) bool {
	family := 0
	if seen.Is6() {
		family = 1
	}
	switch {
	case from.kind == aNode || from.kind == ofPods:
		for _, s := range c.stations { // any address of the node
			if (s.kind == aNode || s.kind == ofPods) && s.node == from.node && s.addr[family] == seen {
				return true
			}
		}
		return false
	case from.kind == aPod && (to.kind == outside || to.kind == aNode && from.node != to.node):
		return seen == c.nodeAddr(from.node, family) // masqueraded
	default:
		return seen == from.addr[family]
	}
}

func (c *cluster) nodeAddr(node, family int) netip.Addr {
	for _, s := range c.stations {
		if s.kind == aNode && s.node == node {
			return s.addr[family]
		}
	}
	return netip.Addr{}
}

// TestMatrix connects every station with every other one, through each kind of tunnel.
// LOXILIGHT_PODS is how many pods each node has.
func TestMatrix(t *testing.T) {
	testnet.RequireRoot(t)
	pods := 2
	if v := os.Getenv("LOXILIGHT_PODS"); v != "" {
		var err error
		if pods, err = strconv.Atoi(v); err != nil {
			t.Fatalf("LOXILIGHT_PODS=%s: %v", v, err)
		}
	}
	if pods > 5 {
		roomForNeighbours(t)
	}
	kinds := []clusterKind{
		{}, {tunnel: "gre"}, {tunnel: "gre", over6: true}, {tunnel: "vxlan"}, {tunnel: "geneve"},
		{tunnel: "vxlan", over6: true}, {tunnel: "geneve", over6: true}, {merged: true}, {tunnel: "vxlan", merged: true},
	}
	for i := range kinds {
		kinds[i].pods = pods
	}
	eachKind(t, kinds, func(t *testing.T, c *cluster) {
		m := c.talkAll()
		m.print(t)
		if !t.Failed() {
			c.talkMuch()
		}
		for i := range c.nodes {
			for reason, count := range c.dropped(i + 1) {
				t.Errorf("drops %s: %d", reason, count)
			}
		}
	})
}

// roomForNeighbours enlarges the kernel's neighbour tables for pods that all resolve each other:
// the limits apply to all namespaces together.
func roomForNeighbours(t *testing.T) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, name := range []string{"gc_thresh1", "gc_thresh2", "gc_thresh3"} {
			path := filepath.Join("/proc/sys/net", family, "neigh/default", name)
			before, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, []byte("32768"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.WriteFile(path, before, 0o644); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// matrix contains the successes: rows are relations, columns protocols.
type matrix struct {
	mu    sync.Mutex
	cells map[[2]string][2]int // of row and column: successes, attempts
	fails []string
}

func (m *matrix) note(row, column string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cell := m.cells[[2]string{row, column}]
	cell[1]++
	if err == nil {
		cell[0]++
	} else {
		m.fails = append(m.fails, fmt.Sprintf("%s by %s: %v", row, column, err))
	}
	m.cells[[2]string{row, column}] = cell
}

// print writes the matrix to the log, and fails the test if an attempt failed.
func (m *matrix) print(t *testing.T) {
	t.Helper()
	rows, columns := map[string]bool{}, map[string]bool{}
	for k := range m.cells {
		rows[k[0]], columns[k[1]] = true, true
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t"+strings.Join(sorted(columns), "\t"))
	for _, row := range sorted(rows) {
		fmt.Fprint(w, row)
		for _, column := range sorted(columns) {
			cell := m.cells[[2]string{row, column}]
			fmt.Fprintf(w, "\t%d/%d", cell[0], cell[1])
		}
		fmt.Fprintln(w)
	}
	w.Flush() // into memory
	t.Log("\n" + b.String())
	for i, f := range m.fails {
		if i == 40 {
			t.Errorf("and %d more", len(m.fails)-i)
			break
		}
		t.Error(f)
	}
}
