// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"syscall"
)

// ErrRefused is wrapped if a restart does not help: the kernel rejects the programs, or the pins of
// an earlier version cannot be taken over. Nothing was changed, and attached programs stay in
// force.
var ErrRefused = errors.New("nothing was changed, the attached programs continue")

// IsShortage reports whether the kernel was temporarily short of a resource: file descriptors or
// memory. Such an error is never [ErrRefused].
func IsShortage(err error) bool {
	if err == nil {
		return false
	}
	// The library that loads programs does not wrap every kernel error, so the text is checked as
	// well.
	text := err.Error()
	for _, lack := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN} {
		if errors.Is(err, lack) || strings.Contains(text, lack.Error()) {
			return true
		}
	}
	return false
}

// Preflight predicts how the data plane would start on this kernel, with the existing pins.
type Preflight struct {
	OK       bool               `json:"ok"`
	Kernel   string             `json:"kernel"` // release
	Programs []PreflightProgram `json:"programs"`
	Hooks    PreflightHooks     `json:"hooks"`
	Pins     PreflightPins      `json:"pins"`
}

// PreflightProgram is one program, as loaded for one netns.
type PreflightProgram struct {
	Program      string   `json:"program"`
	Netns        string   `json:"netns"`      // host, switch
	TakingOver   bool     `json:"takingOver"` // the copy that runs first during a takeover
	Optional     bool     `json:"optional"`   // the daemon starts without it
	OK           bool     `json:"ok"`
	Instructions int      `json:"instructions"` // as compiled
	Processed    uint32   `json:"processed"`    // instructions seen by the verifier; limit: a million
	StackBytes   int      `json:"stackBytes"`   // of the deepest function; 0: not reported
	Error        string   `json:"error,omitempty"`
	Verifier     []string `json:"verifier,omitempty"` // last lines of its log, if it rejected
}

// Copy returns the name of the program, and whether this copy is for a takeover.
func (p *PreflightProgram) Copy() string {
	if p.TakingOver {
		return p.Program + " (taking over)"
	}
	return p.Program
}

// PreflightHooks predicts how the programs will be attached.
type PreflightHooks struct {
	OK       bool   `json:"ok"`
	Use      string `json:"use"`                // tcx, or tc for cls_bpf
	Fallback string `json:"fallback,omitempty"` // why tcx is not used
	Error    string `json:"error,omitempty"`
}

// The predicted actions for pins.
const (
	PinsNone    = "none"    // nothing is pinned
	PinsAdopt   = "adopt"   // adopted unchanged
	PinsConvert = "convert" // entries are copied into maps of a different layout or size
	PinsRefuse  = "refuse"  // cannot be taken over
)

// PreflightPins predicts what the data plane does with the existing pins when it starts.
type PreflightPins struct {
	OK     bool           `json:"ok"`
	Dir    string         `json:"dir"`
	Action string         `json:"action"`           // the worst action of all maps
	Writer string         `json:"writer,omitempty"` // version of loxilight that wrote them
	Error  string         `json:"error,omitempty"`
	Maps   []PreflightMap `json:"maps,omitempty"` // maps that are not adopted unchanged
}

// PreflightMap is a pinned map that cannot be adopted unchanged.
type PreflightMap struct {
	Map    string `json:"map"`
	Action string `json:"action"`
	Reason string `json:"reason"`
}
