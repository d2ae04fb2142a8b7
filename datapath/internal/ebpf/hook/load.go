// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"cmp"
	"errors"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Program is a compiled program.
type Program struct {
	Name string
	Load func() (*ebpf.CollectionSpec, error) // returns its specification, which includes its maps
}

// Programs returns the programs that are loaded once for each namespace: ingress, then egress.
func Programs() [2]Program {
	return [2]Program{{kernel.ProgLlTcIngress, kernel.LoadKernel}, {kernel.EgressProgLlTcEgress, kernel.LoadEgress}}
}

// Pair holds the programs of both tc hooks. A program that is not loaded is nil.
type Pair struct {
	Ingress, Egress *ebpf.Program
	slow            *ebpf.Map // from which Ingress calls the program of the slow path
	mirrors         [mirrorSideCount]*ebpf.Program
	names           *ebpf.Program
}

// Close closes the handles of the programs; attached programs stay attached.
func (p *Pair) Close() (err error) {
	for _, x := range append(p.mirrors[:], p.Ingress, p.Egress, p.names) {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
	}
	if p.slow != nil {
		err = errors.Join(err, p.slow.Close())
	}
	return err
}

// Load loads the programs of the namespace with these maps, by name. Programs that an earlier run
// loaded are reused if they are identical. The error wraps [datapath.ErrRefused] if the kernel
// rejects a program.
func (z *Netns) Load(programs [2]Program, maps map[string]*ebpf.Map) error {
	z.maps = maps
	return z.Pair.load(programs, z.ID, false, maps)
}

// LoadShadow loads the shadow programs, which run before an earlier run's programs, unless already
// done. Its parameters and errors are as for [Netns.Load].
func (z *Netns) LoadShadow(programs [2]Program, maps map[string]*ebpf.Map) error {
	if z.shadow.Ingress != nil {
		return nil
	}
	if err := z.shadow.load(programs, z.ID, true, maps); err != nil {
		return errors.Join(err, z.CloseShadow())
	}
	return nil
}

// CloseShadow closes the handles of the shadow programs. They must be detached.
func (z *Netns) CloseShadow() error {
	err := z.shadow.Close()
	z.shadow = Pair{}
	return err
}

// load loads both programs in parallel, since the kernel verifies each for about a second.
func (p *Pair) load(programs [2]Program, id uint8, shadow bool, maps map[string]*ebpf.Map) error {
	var both sync.WaitGroup
	var errs [2]error
	for i, to := range []**ebpf.Program{&p.Ingress, &p.Egress} {
		both.Go(func() {
			x, slow, err := loadProgram(copyOf{programs[i], id, shadow}, maps)
			if err != nil {
				errs[i] = refusedProgram(programs[i].Name, id, err)
			}
			if *to = x; slow != nil {
				p.slow = slow
			}
		})
	}
	both.Wait()
	return cmp.Or(errs[0], errs[1])
}

// copyOf identifies a program and its constants.
type copyOf struct {
	Program
	namespace uint8
	shadow    bool // config_shadow
}

// spec returns the description of p with its constants, and the maps that it uses of maps.
func (p copyOf) spec(maps map[string]*ebpf.Map) (s *ebpf.CollectionSpec, replace map[string]*ebpf.Map, err error) {
	if s, err = p.Load(); err != nil {
		return nil, nil, err
	}
	if err := s.Variables[kernel.VarConfigNetns].Set(p.namespace); err != nil {
		return nil, nil, err
	}
	if p.shadow {
		if err := s.Variables[kernel.VarConfigShadow].Set(uint8(1)); err != nil {
			return nil, nil, err
		}
	}
	if err := kernel.SetConnTable(s, maps); err != nil {
		return nil, nil, err
	}
	if err := s.Variables[kernel.VarConfigBuild].Set(buildOf(s)); err != nil {
		return nil, nil, err
	}
	replace = make(map[string]*ebpf.Map)
	for n, m := range s.Maps {
		m.Pinning = ebpf.PinNone
		if shared := kernel.SharedMap(maps, n); shared != nil {
			replace[n] = shared
			m.MaxEntries = shared.MaxEntries()
		}
	}
	return s, replace, nil
}

// loadProgram loads a program, or reuses an earlier run's identical one; slow is the array that
// contains the program of its slow path, or nil if it has no slow path.
func loadProgram(p copyOf, maps map[string]*ebpf.Map) (program *ebpf.Program, slow *ebpf.Map, err error) {
	s, replace, err := p.spec(maps)
	if err != nil {
		return nil, nil, err
	}
	earlier, err := newRunning(s, replace)
	if err != nil {
		return nil, nil, err
	}
	if program, slow = earlier.find(p.Name); program != nil {
		return program, slow, nil
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if c.Maps[kernel.MapLlSlow] != nil {
		slow = c.DetachMap(kernel.MapLlSlow)
	}
	return c.DetachProgram(p.Name), slow, nil
}

// verifyProgram loads a single program for its verifier's log, without the program that it calls.
func verifyProgram(p copyOf, maps map[string]*ebpf.Map, log ebpf.LogLevel) (*ebpf.Program, error) {
	s, replace, err := p.spec(maps)
	if err != nil {
		return nil, err
	}
	s.Programs = map[string]*ebpf.ProgramSpec{p.Name: s.Programs[p.Name]}
	if slow := s.Maps[kernel.MapLlSlow]; slow != nil {
		slow.Contents = nil
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{
		MapReplacements: replace, Programs: ebpf.ProgramOptions{LogLevel: log},
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(p.Name), nil
}

// ProgramName returns the name of a loaded program; "?" if it cannot be read.
func ProgramName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "?"
	}
	defer p.Close() // only closes a file descriptor
	info, err := p.Info()
	if err != nil {
		return "?"
	}
	return info.Name
}
