// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// InspectOptions select what Inspect examines.
type InspectOptions struct {
	Config
	// Ports are wanted: their devices are looked at whether or not ours is attached.
	Ports map[PortName]Port
	PID   int // of the daemon, if it runs: it holds maps open
	// Targets are addresses whose route out of the node is looked up.
	Targets []netip.Addr
}

// Inspection is the kernel state of a data plane, and of other programs beside it, as seen from
// outside: whether or not the daemon runs.
type Inspection struct {
	Layout  int // of this version
	Layouts []InspectedLayout
	Ports   []InspectedPort
	Devices []InspectedDevice // of Ports and of the wanted ports
	Found   map[string]Device // all devices of the host
	Filters []InspectedFilter // called as ours, and no pin of this instance knows them
	Routes  map[netip.Addr]InspectedRoute
	// NoSwitch is set if the network namespace of the switch does not exist.
	NoSwitch bool
	// ForwardDrops are the chains of netfilter whose policy drops packets that the host forwards.
	ForwardDrops []string
	// Siblings are folders like PinDir beside it, of other instances.
	Siblings []InspectedSibling
	Unseen   map[string]string // unreadable state: why
}

// InspectedLayout is one folder of pinned maps.
type InspectedLayout struct {
	Path    string
	Current bool // of this version
	Maps    int
	Bytes   uint64   // that its maps take of the machine's memory
	Ports   int      // folders of pins of ports in it
	Missing []string // maps that a folder of this version should have
	Resized []string // maps whose resizing was interrupted
	Strange []string // foreign files among the pins
	Sizes   map[string]InspectedSize
	// Repin restores missing pins of maps that attached programs or the daemon hold; nil: no pin
	// is missing.
	Repin func() error
}

// InspectedSize is the size of a map whose size is not the configured one.
type InspectedSize struct{ Is, Want uint32 }

// InspectedPort is a folder of pins of a port.
type InspectedPort struct {
	Name    PortName
	Path    string
	Current bool // of the layout of this version
	Switch  bool
	Index   int    // of the device; 0: it went
	Device  string // its name; empty: it went
	Hooks   []InspectedHook
	Unknown bool // not all of its pins could be read
	// Remove removes the folder of a device that vanished; nil: the device exists.
	Remove func() error
}

// InspectedHook is one pinned program.
type InspectedHook struct {
	Name     string // such as tcx-ingress
	Attached bool
	Program  uint32 // the kernel's id; 0: unknown
}

// InspectedDevice is a device and the programs on its hooks, in the order in which packets pass
// them.
type InspectedDevice struct {
	Name   string
	Switch bool
	Exists bool
	Up     bool
	Type   string // such as veth
	Index  int
	XDP    *ChainProgram
	VLANs  []string // VLAN devices of the kernel on it
	// TagsHidden is set if the device removes VLAN tags from frames, so that programs in XDP do
	// not see them.
	TagsHidden bool
	Ingress    []ChainProgram // tcx programs first, then filters of clsact
	Egress     []ChainProgram
	// IngressQdisc is set if the device has the qdisc ingress instead of clsact.
	IngressQdisc bool
}

// ChainProgram is one program, or filter, on a hook.
type ChainProgram struct {
	Hook    string // xdp, tcx, tc
	Ours    bool   // a pin of this instance knows it
	Program string // its name, or the kind of the filter
	ID      uint32
	Detail  string // such as "priority 10" or "generic"
}

// InspectedFilter is a filter that is called as ours.
type InspectedFilter struct {
	Device  string
	Switch  bool
	Hook    string // tc-ingress, tc-egress
	Program uint32
	// Holder is the user of its maps: another folder of pins, or a process; empty: none.
	Holder string
	// Remove removes it; nil: it has a holder.
	Remove func() error
}

// InspectedRoute is the way out to an address.
type InspectedRoute struct {
	Device string // empty: there is no way
	Local  bool   // it is an address of the node itself
	Error  string // why there is no way
}

// InspectedSibling is the folder of pins of another instance.
type InspectedSibling struct {
	Path     string
	Attached int // programs
	// Remove removes a folder that nothing is attached by; nil: something is.
	Remove func() error
}
