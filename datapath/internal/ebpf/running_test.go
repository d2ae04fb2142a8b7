// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestRestartLoadsNothing: the programs of the earlier run stay attached if they are identical, and
// are replaced if not.
func TestRestartLoadsNothing(t *testing.T) {
	testnet.RequireRoot(t)
	n := newNetwork(t)
	n.attach()
	before := n.programs()
	n.restart("")
	if after := n.programs(); after != before {
		t.Errorf("programs %v after a restart, %v before it", after, before)
	}
	build(t, 36, func() { n.restart("") })
	if after := n.programs(); after[0] == before[0] || after[1] == before[1] {
		t.Errorf("with other constants programs are %v as before", after)
	}
	n.restart("")
	before = n.programs()
	n.config.Tables.Affinity *= 2 // a table that only the slow path uses
	n.restart("")
	if after := n.programs(); after[0] == before[0] {
		t.Errorf("with another size of ll_affinity the ingress program is %v as before", after[0])
	}
	before = n.programs()
	altered(t, func() { n.restart("") })
	if after := n.programs(); after[0] == before[0] || after[1] == before[1] {
		t.Errorf("with other instructions programs are %v as before", after)
	}
}

// altered runs f with an additional instruction in the programs of this package.
func altered(t *testing.T, f func()) {
	t.Helper()
	restore := versionOf(t)
	defer restore()
	for i, p := range programs {
		programs[i].Load = func() (*ebpf.CollectionSpec, error) {
			s, err := p.Load()
			if err != nil {
				return nil, err
			}
			program := s.Programs[p.Name]
			first := asm.Mov.Reg(asm.R6, asm.R1).WithMetadata(program.Instructions[0].Metadata)
			program.Instructions[0].Metadata = asm.Metadata{}
			program.Instructions = append(asm.Instructions{first}, program.Instructions...)
			return s, nil
		}
	}
	f()
}

// programs returns the ids of the programs of the host's namespace.
func (n *network) programs() (ids [2]ebpf.ProgramID) {
	n.t.Helper()
	z, err := n.d.namespaces.Open(netnsHost)
	n.ok(err)
	for i, p := range []*ebpf.Program{z.Ingress, z.Egress} {
		info, err := p.Info()
		n.ok(err)
		ids[i], _ = info.ID()
	}
	return ids
}
