// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Entry is one direction of a connection, as its table holds it. It is valid only during a call.
type Entry interface {
	Meta() *kernel.CtMeta
	Protocol() datapath.Protocol
	Namespace() uint8
	// Tuples returns the tuple with which packets of this direction arrive, and the tuple with
	// which they leave.
	Tuples() (comes, leaves datapath.Tuple)
}

// Judge ends connections, or needs to know which exist.
type Judge interface {
	// PassBegins returns the judge's part in a new pass over all connections. Passes are numbered in
	// order. A pass may be given up: then PassEnded is never called, and what Deleted has learnt must
	// not be lost.
	PassBegins(number uint64) Part
}

// Part is a judge's part in one pass. No two of its methods are called at the same time.
type Part interface {
	// Resumed is called before each step of the pass: the previous step may have been seconds ago.
	Resumed()
	// Seen is called for each entry.
	Seen(e Entry)
	// Ends reports whether the connection of an entry ends now, even if it is not idle. It is not
	// called if a judge before this one ends it; judges after it may still end it.
	Ends(e Entry) bool
	// Deleted is called for each direction of a connection that the pass has deleted, with its last
	// counters and state. Seen may have been called for it.
	Deleted(e Entry)
	// PassEnded is called once all entries have been seen, and all connections that end have been
	// deleted.
	PassEnded() error
}
