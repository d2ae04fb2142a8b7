// SPDX-License-Identifier: Apache-2.0

package api

// Severities of a [Finding], the worst first.
const (
	SeverityError   = "error"   // packets or changes are lost, or will be at the next start
	SeverityWarning = "warning" // works now, but something will go wrong
	SeverityNote    = "note"    // good to know
)

// DoctorReport is the output of loxilightd --doctor --json, which llcli doctor shows.
type DoctorReport struct {
	Instance string    `json:"instance"`
	Config   string    `json:"config"`  // the file
	Version  string    `json:"version"` // version of the loxilightd that ran the checks
	Daemon   string    `json:"daemon"`  // its state, in a few words
	Checked  []string  `json:"checked"` // the checks performed, in a few words each
	Unseen   []Unseen  `json:"unseen,omitempty"`
	Findings []Finding `json:"findings"` // the worst first
	// Objects are the desired objects, from the daemon or from its store; only if requested.
	Objects []Object `json:"objects,omitempty"`
}

// Unseen is something that could not be examined.
type Unseen struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Finding is one problem or noteworthy fact that a check found.
type Finding struct {
	ID       string `json:"id"` // identifies the kind of finding, such as files.mode; stable across versions
	Severity string `json:"severity"`
	Object   string `json:"object"` // the subject: a path, a device, Kind/name, a sysctl
	What     string `json:"what"`
	Why      string `json:"why"`
	Do       string `json:"do"`
	Fixable  bool   `json:"fixable,omitempty"` // --fix can repair it
	Fixed    string `json:"fixed,omitempty"`   // the repair that --fix made
	// FixError is the reason why --fix could not repair it.
	FixError string `json:"fixError,omitempty"`
}

// Left reports whether the finding still exists.
func (f *Finding) Left() bool { return f.Fixed == "" }
