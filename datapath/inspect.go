// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// InspectOptions select what Inspect examines.
type InspectOptions struct {
	Config
	// Ports are the configured ports: their devices are examined whether or not programs are
	// attached.
	Ports map[PortName]Port
	PID   int // of the daemon, if it runs: it keeps maps open
	// Targets are addresses whose route out of the node is looked up.
	Targets []netip.Addr
}

// Inspection is the kernel state of a data plane, and of other programs, as seen from outside,
// whether or not the daemon runs.
type Inspection struct {
	Layout  int // of this version
	Layouts []InspectedLayout
	Ports   []InspectedPort
	Devices []InspectedDevice // of Ports and of the configured ports
	Found   map[string]Device // all devices of the host
	Filters []InspectedFilter // with the name of ours, but without a pin of this instance
	Routes  map[netip.Addr]InspectedRoute
	// NoSwitch is set if the network namespace of the switch does not exist.
	NoSwitch bool
	// ForwardDrops are the chains of netfilter whose policy drops packets that the host forwards.
	ForwardDrops []string
	// Siblings are the pin folders of other instances next to PinDir.
	Siblings []InspectedSibling
	Unseen   map[string]string // reason by unreadable state
}

// InspectedLayout is one folder of pinned maps.
type InspectedLayout struct {
	Path    string
	Current bool // of this version
	Maps    int
	Bytes   uint64   // of memory that its maps use
	Ports   int      // pin folders of ports in it
	Missing []string // maps that a folder of this version should have
	Resized []string // maps whose resizing was interrupted
	Strange []string // foreign files among the pins
	Sizes   map[string]InspectedSize
	// Repin restores missing pins of maps that attached programs or the daemon hold; nil: no pin
	// is missing.
	Repin func() error
}

// InspectedSize is the actual and configured size of a map if they differ.
type InspectedSize struct{ Is, Want uint32 }

// InspectedPort is the pin folder of a port.
type InspectedPort struct {
	Name    PortName
	Path    string
	Current bool // of the layout of this version
	Switch  bool
	Index   int    // of the device; 0: the device was deleted
	Device  string // its name; empty: the device was deleted
	Hooks   []InspectedHook
	Unknown bool // not all of its pins could be read
	// Remove removes the folder of a device that was deleted; nil: the device exists.
	Remove func() error
}

// InspectedHook is one pinned program.
type InspectedHook struct {
	Name     string // such as tcx-ingress
	Attached bool
	Program  uint32 // the kernel's ID; 0: unknown
}

// InspectedDevice is a device and the programs on its hooks, in the order in which they run.
type InspectedDevice struct {
	Name   string
	Switch bool
	Exists bool
	Up     bool
	Type   string // such as veth
	Index  int
	XDP    *ChainProgram
	VLANs  []string // VLAN devices of the kernel on it
	// TagsHidden is set if the device strips VLAN tags from frames, so that XDP programs do not see
	// them.
	TagsHidden bool
	Ingress    []ChainProgram // tcx programs first, then filters of clsact
	Egress     []ChainProgram
	// IngressQdisc is set if the device has the qdisc ingress instead of clsact.
	IngressQdisc bool
}

// ChainProgram is one program, or filter, on a hook.
type ChainProgram struct {
	Hook    string // xdp, tcx, tc
	Ours    bool   // a pin of this instance refers to it
	Program string // its name, or the kind of the filter
	ID      uint32
	Detail  string // such as "priority 10" or "generic"
}

// InspectedFilter is a filter with the name of ours.
type InspectedFilter struct {
	Device  string
	Switch  bool
	Hook    string // tc-ingress, tc-egress
	Program uint32
	// Holder is the user of its maps: another folder of pins, or a process; empty: none.
	Holder string
	// Remove removes the filter; nil: it has a holder.
	Remove func() error
}

// InspectedRoute is the route out of the node to an address.
type InspectedRoute struct {
	Device string // empty: no route exists
	Local  bool   // it is an address of the node itself
	Error  string // why no route exists
}

// InspectedSibling is the pin folder of another instance.
type InspectedSibling struct {
	Path     string
	Attached int // programs
	// Remove removes the folder; nil: it has attached programs.
	Remove func() error
}
