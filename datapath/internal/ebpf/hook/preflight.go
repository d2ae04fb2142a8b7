// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// preflightEntries is the size of the hash maps with which the programs are loaded.
const preflightEntries = 64

// verifierLines is the number of lines of the verifier's log that are reported.
const verifierLines = 12

// Preflight loads the programs of both namespaces with maps of its own, and attaches the ingress
// program in a namespace of its own; how is as for [Netns.Attach]. It leaves nothing behind. It
// does not set Pins in the report. An error means that it could not run.
func Preflight(programs [2]Program, how string) (r datapath.Preflight, err error) {
	r.Kernel = kernel.Release()
	if err := kernel.CheckFiles(); err != nil {
		return r, err
	}
	if err := CheckKernel(features.HaveProgramHelper); err != nil {
		return r, err
	}
	maps, err := preflightMaps(programs)
	defer pin.CloseMaps(maps)
	if err != nil {
		return r, err
	}
	r.OK = true
	copies := preflightCopies(programs)
	results, loaded := preflightLoad(copies, maps)
	r.Programs = results
	for i, c := range copies {
		r.OK = r.OK && (results[i].OK || results[i].Optional)
		if loaded[i] == nil {
			continue
		}
		if c.namespace == Host && !c.shadow && c.Name == kernel.ProgLlTcIngress {
			r.Hooks = preflightHooks(loaded[i], how)
			r.OK = r.OK && r.Hooks.OK
		}
		loaded[i].Close() // only closes a file descriptor
	}
	return r, nil
}

// preflightCopies returns all programs that a daemon may load.
func preflightCopies(programs [2]Program) (copies []copyOf) {
	for namespace := range labels {
		for _, p := range programs {
			for _, shadow := range []bool{false, true} {
				copies = append(copies, copyOf{p, uint8(namespace), shadow})
				if p.Name == kernel.ProgLlTcIngress {
					copies = append(copies, copyOf{Program{kernel.ProgLlTcSlow, p.Load}, uint8(namespace), shadow})
				}
			}
		}
		for _, name := range mirrorPrograms {
			copies = append(copies, copyOf{mirrorProgram(name), uint8(namespace), false})
		}
		copies = append(copies, copyOf{Program{kernel.ShortestProgLlXdp, kernel.LoadShortest}, uint8(namespace), false})
	}
	return copies
}

// preflightLoad loads programs, as many in parallel as there are CPUs, since verification of one
// may take a second. A program that cannot be loaded is nil.
func preflightLoad(copies []copyOf, maps map[string]*ebpf.Map) ([]datapath.PreflightProgram, []*ebpf.Program) {
	results, loaded := make([]datapath.PreflightProgram, len(copies)), make([]*ebpf.Program, len(copies))
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, c := range copies {
		all.Go(func() {
			free <- struct{}{}
			results[i], loaded[i] = preflightProgram(c, maps)
			<-free
		})
	}
	all.Wait()
	return results, loaded
}

// preflightMaps creates every map, small and not pinned.
func preflightMaps(programs [2]Program) (map[string]*ebpf.Map, error) {
	maps := make(map[string]*ebpf.Map)
	for _, p := range programs {
		spec, err := p.Load()
		if err != nil {
			return maps, err
		}
		for name, m := range spec.Maps {
			if !strings.HasPrefix(name, "ll_") || maps[name] != nil || m.Type == ebpf.ProgramArray {
				continue
			}
			m.Pinning = ebpf.PinNone
			switch m.Type {
			case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LPMTrie:
				m.MaxEntries = preflightEntries
			}
			if maps[name], err = ebpf.NewMap(m); err != nil {
				return maps, fmt.Errorf("create map %s: %w", name, err)
			}
		}
	}
	return maps, kernel.PrepareConnTable(maps, [2]uint32{})
}

var (
	stackLine     = regexp.MustCompile(`stack depth ([0-9+]+)`)
	processedLine = regexp.MustCompile(`processed (\d+) insns`)
)

func preflightProgram(c copyOf, maps map[string]*ebpf.Map) (datapath.PreflightProgram, *ebpf.Program) {
	result := datapath.PreflightProgram{
		Program: c.Name, Netns: labels[c.namespace], TakingOver: c.shadow,
		Optional: c.Name == kernel.ShortestProgLlXdp, // without it packets take the tc path
	}
	if spec, err := c.Load(); err == nil {
		result.Instructions = len(spec.Programs[c.Name].Instructions)
	}
	p, err := verifyProgram(c, maps, ebpf.LogLevelStats)
	if err != nil {
		p, err = verifyProgram(c, maps, 0) // with the full log if it fails
	}
	if err != nil {
		result.Error = err.Error()
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			result.Error = fmt.Sprintf("load %s: %v", c.Name, refused.Cause)
			result.Verifier = lastLines(refused)
		}
		return result, nil
	}
	result.OK = true
	if m := processedLine.FindStringSubmatch(p.VerifierLog); m != nil {
		n, _ := strconv.ParseUint(m[1], 10, 32) // digits
		result.Processed = uint32(n)
	}
	if m := stackLine.FindStringSubmatch(p.VerifierLog); m != nil {
		for depth := range strings.SplitSeq(m[1], "+") {
			n, _ := strconv.Atoi(depth) // digits
			result.StackBytes = max(result.StackBytes, n)
		}
	}
	return result, p
}

// lastLines returns the end of the verifier's log.
func lastLines(refused *ebpf.VerifierError) []string {
	var lines []string
	for _, line := range refused.Log {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-verifierLines):]
}

// refusedProgram returns the error for a program that the kernel rejects.
func refusedProgram(name string, namespace uint8, err error) error {
	what := fmt.Sprintf("kernel %s does not load program %s of namespace %s", kernel.Release(), name, labels[namespace])
	if datapath.IsShortage(err) {
		return fmt.Errorf("%s: %w", what, err) // may succeed later
	}
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		return fmt.Errorf("%s: %w (%w); the verifier's last lines:\n%s",
			what, refused.Cause, datapath.ErrRefused, strings.Join(lastLines(refused), "\n"))
	}
	return fmt.Errorf("%s: %w (%w)", what, err, datapath.ErrRefused)
}
