// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// known describes what the table reports about its services.
func (s *faultySite) known() string {
	var outOfUse []string
	for name, addr := range s.OutOfUse() {
		outOfUse = append(outOfUse, fmt.Sprint(name, " ", addr))
	}
	all, ports := s.All(), s.FrontendPorts()
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(outOfUse)
	slices.Sort(ports)
	usage := map[string]datapath.Usage{}
	s.Usage(usage, testtables.Small)
	return fmt.Sprintf("services %+v\nout of use %q\nports %v, some: %t\nusage %v", all, outOfUse, ports, s.HasFrontends(), usage)
}

// TestAdopted: before its first update, the next run knows the services, their backends and ids,
// which backends are out of use, and how full the tables are. The adoption writes nothing, and first
// updates with the same services leave the entries of the frontends as they are.
func TestAdopted(t *testing.T) {
	outOfUse := 0
	for seed := range uint64(30) {
		s := newFaultySite(t, seed)
		for range 8 {
			s.change()
		}
		s.converge()
		before, entries := s.known(), (&tablesOfSite{s.tables}).entries()
		s.writes = 0
		s.restart()
		if after := s.known(); after != before || s.writes > 0 {
			t.Errorf("seed %d: after %d writes\n%s\nbefore\n%s", seed, s.writes, after, before)
		}
		for range s.OutOfUse() {
			outOfUse++
		}
		s.converge()
		for f, e := range (&tablesOfSite{s.tables}).entries() {
			if e != entries[f] {
				t.Errorf("seed %d: frontend %s: %+v, before %+v", seed, f, e, entries[f])
			}
		}
		s.wantModel(fmt.Sprint("seed ", seed))
	}
	if outOfUse == 0 {
		t.Error("no backend was out of use")
	}
}
