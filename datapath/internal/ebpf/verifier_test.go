// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// Limits of the verifier in kernels from 5.17 on.
const (
	stackMax    = 512 // bytes of a function and all its callers
	stackUnit   = 32  // stack frames are rounded up to a multiple of it; newer kernels use 16
	processedOK = 300_000
)

// verified is a program as the daemon loads it: the verifier knows its constants.
type verified struct {
	load      func() (*ebpf.CollectionSpec, error)
	program   string
	constants map[string]any
	flags     uint32
	whole     bool // the constants make no function unreachable
}

// everyProgram returns all programs, with the constants that determine which paths the verifier
// checks.
func everyProgram() map[string]verified {
	all := map[string]verified{kernel.ExpirerProgLlExpireRun: {load: kernel.LoadExpirer, program: kernel.ExpirerProgLlExpireRun, whole: true}}
	all[kernel.NamesProgLlNamesSweep] = verified{load: kernel.LoadNames, program: kernel.NamesProgLlNamesSweep, whole: true}
	for namespace, where := range map[uint8]string{netnsHost: "host", netnsSwitch: "switch"} {
		for first, what := range map[uint8]string{0: "", 1: ", shadow"} {
			constants := map[string]any{kernel.VarConfigNetns: namespace, kernel.VarConfigShadow: first}
			whole := namespace == netnsHost && first == 0
			all[kernel.ProgLlTcIngress+", "+where+what] = verified{kernel.LoadKernel, kernel.ProgLlTcIngress, constants, 0, whole}
			all[kernel.ProgLlTcSlow+", "+where+what] = verified{kernel.LoadKernel, kernel.ProgLlTcSlow, constants, 0, whole}
			all[kernel.EgressProgLlTcEgress+", "+where+what] = verified{kernel.LoadEgress, kernel.EgressProgLlTcEgress, constants, 0, whole}
		}
		all[kernel.NamesProgLlTcNames+", "+where] = verified{kernel.LoadNames, kernel.NamesProgLlTcNames, map[string]any{kernel.VarConfigNetns: namespace}, 0, namespace == netnsHost}
		for _, name := range []string{kernel.MirrorsProgLlMirrorIn, kernel.MirrorsProgLlMirrorOut, kernel.MirrorsProgLlMirrorSend} {
			all[name+", "+where] = verified{kernel.LoadMirrors, name, map[string]any{kernel.VarConfigNetns: namespace}, 0, namespace == netnsHost}
		}
		for pieces, flags := range map[uint8]uint32{0: 0, 1: unix.BPF_F_XDP_HAS_FRAGS} {
			for generic := range uint8(2) {
				all[fmt.Sprintf("%s, %s, generic %d, fragments %d", kernel.ShortestProgLlXdp, where, generic, pieces)] = verified{
					kernel.LoadShortest, kernel.ShortestProgLlXdp, map[string]any{
						kernel.VarConfigNetns: namespace, kernel.ShortestVarConfigTurn: 1 - generic, kernel.ShortestVarConfigGeneric: generic,
						kernel.ShortestVarConfigPieces: pieces,
					}, flags, true,
				}
			}
		}
	}
	return all
}

// Lines of the verifier's log.
var (
	verifierStack     = regexp.MustCompile(`stack depth ([0-9+]+)`)
	verifierProcessed = regexp.MustCompile(`processed (\d+) insns`)
)

// TestOldVerifiersAccept checks the programs against the limits of kernels older than the running
// one. The limit of processed instructions leaves a margin for other verifiers.
func TestOldVerifiersAccept(t *testing.T) {
	testnet.RequireRoot(t)
	for what, v := range everyProgram() {
		t.Run(what, func(t *testing.T) {
			name := v.program
			spec, err := v.load()
			if err != nil {
				t.Fatal(err)
			}
			for constant, value := range v.constants {
				if err := spec.Variables[constant].Set(value); err != nil {
					t.Fatalf("%s: %v", constant, err)
				}
			}
			spec.Programs[name].Flags |= v.flags
			for _, m := range spec.Maps {
				m.Pinning = ebpf.PinNone
			}
			c, err := loadWithLog(spec, ebpf.LogLevelStats)
			if _, ok := errors.AsType[*ebpf.VerifierError](err); ok { // the full log has the reason
				_, err = loadWithLog(spec, ebpf.LogLevelInstruction)
			}
			if refused, ok := errors.AsType[*ebpf.VerifierError](err); ok {
				t.Fatalf("%v:\n%s", err, strings.Join(refused.Log[max(0, len(refused.Log)-40):], "\n"))
			}
			if err != nil {
				t.Fatalf("%+v", err)
			}
			defer c.Close()
			log := c.Programs[name].VerifierLog
			processed := verifierProcessed.FindStringSubmatch(log)
			depths := verifierStack.FindStringSubmatch(log)
			if processed == nil || depths == nil {
				t.Fatalf("the verifier's log has changed: %s", log)
			}
			if n, err := strconv.Atoi(processed[1]); err != nil || n > processedOK {
				t.Errorf("%d instructions processed, want at most %d (%v)", n, processedOK, err)
			}
			if !v.whole {
				t.Logf("%s: %s instructions", what, processed[1])
				return
			}
			f := newFrames(t, spec.Programs[name], strings.Split(depths[1], "+"))
			bytes, calls := f.worst(name)
			t.Logf("%s: %s instructions; %d bytes of stack in %s", what, processed[1], bytes, calls)
			if bytes > stackMax {
				t.Errorf("%s need %d bytes of stack, Linux 6.1 allows %d", calls, bytes, stackMax)
			}
		})
	}
}

func loadWithLog(spec *ebpf.CollectionSpec, level ebpf.LogLevel) (*ebpf.Collection, error) {
	options := ebpf.ProgramOptions{LogLevel: level}
	return ebpf.NewCollectionWithOptions(spec.Copy(), ebpf.CollectionOptions{Programs: options})
}

// frames holds the stack size and the calls of each function of a program.
type frames struct {
	bytes map[string]int
	calls map[string]map[string]bool
}

func newFrames(t *testing.T, p *ebpf.ProgramSpec, depths []string) frames {
	t.Helper()
	f := frames{make(map[string]int), make(map[string]map[string]bool)}
	var function string
	for _, ins := range p.Instructions {
		if s := ins.Symbol(); s != "" {
			if len(f.bytes) == len(depths) {
				t.Fatalf("the verifier reports %d functions; more are in the program, such as %s", len(depths), s)
			}
			depth, err := strconv.Atoi(depths[len(f.bytes)])
			if err != nil {
				t.Fatal(err)
			}
			function = s
			f.bytes[s] = (max(depth, 1) + stackUnit - 1) / stackUnit * stackUnit
			f.calls[s] = make(map[string]bool)
		}
		if ins.IsFunctionCall() {
			f.calls[function][ins.Reference()] = true
		}
	}
	if len(f.bytes) != len(depths) {
		t.Fatalf("the verifier reports %d functions, the program has %d", len(depths), len(f.bytes))
	}
	return f
}

// worst returns the chain of calls that uses the most stack.
func (f frames) worst(function string) (bytes int, calls string) {
	for callee := range f.calls[function] {
		if b, c := f.worst(callee); b > bytes || b == bytes && c < calls {
			bytes, calls = b, " > "+c
		}
	}
	return bytes + f.bytes[function], function + calls
}

// requireTCX skips the test on kernels before 6.6.
func requireTCX(t *testing.T) {
	t.Helper()
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress}) // lo
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {                  // no such hook
		t.Skip("tcx is from Linux 6.6 on")
	}
	if err != nil {
		t.Fatal(err)
	}
}
