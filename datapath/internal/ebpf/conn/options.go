// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Options are what a [Sweeper] and [Connections] use.
type Options struct {
	Tables   *kernel.Tables
	Maps     map[string]*ebpf.Map // the same, for the program that deletes connections
	Shares   *kernel.Shares       // also written by the programs
	States   []string             // names of enum ct_state
	Interval time.Duration        // between the beginnings of two periodic passes, at least
	Longest  time.Duration        // Interval grows up to this as passes take longer; 0: it does not
	// MinConnections and MaxConnections limit the sizes of the tables, by family.
	MinConnections, MaxConnections uint32
	// HasMemory returns an error if there is no memory for that many bytes more.
	HasMemory func(bytes uint64) error
	// IsIdle reports whether no programs are attached, so that no connections begin.
	IsIdle func() bool
	Log    *slog.Logger
	Judges []Judge // in the order in which they are consulted

	// IdleTimes returns the idle times of the services by id; a service that this run has not
	// written yet has the zero value.
	IdleTimes func() map[uint32]datapath.IdleTimeout
	// Paths returns a function that describes the paths of entries, as of now.
	Paths func() (func(*kernel.CtMeta) datapath.Way, error)

	// ServiceOf returns the id of the service of a backend; 0: there is no such backend.
	ServiceOf   func(backend uint32) uint32
	ServiceName func(id uint32) datapath.ServiceName
	NATName     func(id uint16) datapath.NATName
	RuleName    func(id uint32) datapath.RuleName
	// BeforeRules returns a function that reports whether a direction, last seen at a tick, has not been
	// evaluated since the rules were changed.
	BeforeRules func() (func(lastSeenTick uint32) bool, error)
}
