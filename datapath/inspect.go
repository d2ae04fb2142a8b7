// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// InspectOptions select what Inspect examines.
type InspectOptions struct {
	Config
	// Ports are the configured ports: their devices are examined whether or not programs are
	// attached.
	Ports map[PortName]Port
	PID   int // of the daemon, if it is running: it keeps maps open
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
	Filters []InspectedFilter // named like our filters, but not pinned by this instance
	Routes  map[netip.Addr]InspectedRoute
	// NoSwitch is set if the network namespace of the switch does not exist.
	NoSwitch bool
	// ForwardDrops are the netfilter chains whose policy drops packets that the host forwards.
	ForwardDrops []string
	// Siblings are the pin directories of other instances, next to PinDir.
	Siblings []InspectedSibling
	Unseen   map[string]string // the reason, by the state that could not be read
}

// InspectedLayout is one directory of pinned maps.
type InspectedLayout struct {
	Path    string
	Current bool // belongs to this version
	Maps    int
	Bytes   uint64   // of memory that its maps use
	Ports   int      // pin directories of ports in it
	Missing []string // maps that a directory of this version should contain
	Resized []string // maps whose resizing was interrupted
	Strange []string // other programs' files among the pins
	Sizes   map[string]InspectedSize
	// Repin restores missing pins of maps that attached programs or the daemon hold; nil: no pin
	// is missing.
	Repin func() error
}

// InspectedSize is the actual and configured size of a map if they differ.
type InspectedSize struct{ Is, Want uint32 }

// InspectedPort is the pin directory of a port.
type InspectedPort struct {
	Name    PortName
	Path    string
	Current bool // belongs to the layout of this version
	Switch  bool
	Index   int    // of the device; 0: the device was deleted
	Device  string // its name; empty: the device was deleted
	Hooks   []InspectedHook
	Unknown bool // not all of its pins could be read
	// Remove removes the directory of a device that was deleted; nil: the device exists.
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
	VLANs  []string // kernel VLAN devices on it
	// TagsHidden is set if the device strips VLAN tags from frames, so that XDP programs do not see
	// them.
	TagsHidden bool
	Ingress    []ChainProgram // tcx programs first, then clsact filters
	Egress     []ChainProgram
	// IngressQdisc is set if the device has the ingress qdisc instead of clsact.
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

// InspectedFilter is a filter that is named like our filters.
type InspectedFilter struct {
	Device  string
	Switch  bool
	Hook    string // tc-ingress, tc-egress
	Program uint32
	// Holder is what uses its maps: a different pin directory, or a process; empty: nothing.
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

// InspectedSibling is the pin directory of another instance.
type InspectedSibling struct {
	Path     string
	Attached int // programs
	// Remove removes the directory; nil: it has attached programs.
	Remove func() error
}
