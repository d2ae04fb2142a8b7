// SPDX-License-Identifier: Apache-2.0

// Package port attaches the programs to devices, with a source guard for those of endpoints, and
// takes over the programs that an earlier run attached. It does not follow the devices.
package port

import (
	"log/slog"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
)

// Options are what a [Table] uses. The functions must be safe for concurrent use.
type Options struct {
	Dir        string // the folder with the folders of pins
	Attach     string // how programs are attached, as configured
	Programs   [2]hook.Program
	Maps       map[string]*ebpf.Map // which the programs use
	Tables     *kernel.Tables       // the same
	Reasons    int                  // number of values of enum drop_reason
	Namespaces *namespace.Set
	Guards     *guard.Table
	Log        *slog.Logger

	// InUse is set while programs are attached to a port. BeforeFirst is called before the programs
	// are attached to the first port, and AfterFirst afterwards, which must not wait for a port. They
	// may also be called if the attachment fails.
	InUse                   *atomic.Bool
	BeforeFirst, AfterFirst func()

	// NeedsLoopback reports whether our program must handle packets of the host to its own
	// addresses.
	NeedsLoopback func() bool
	// IsMirrored reports whether packets of a device must be copied from now on.
	IsMirrored func(netns uint8, index int) bool
	// EndpointAt is called before programs are attached to the device of an endpoint, EndpointKept for
	// each that is taken over, and EndpointGone after they were detached.
	EndpointAt   func(name datapath.EndpointName, netns uint8, index int) error
	EndpointKept func(name datapath.EndpointName, netns uint8, index int)
	EndpointGone func(name datapath.EndpointName) error
	// FollowMirrors is called after a port was added or removed, without a lock held.
	FollowMirrors func(name datapath.PortName)
	// Signal is called after a change that others must read.
	Signal func()
}
