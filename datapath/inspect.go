// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// InspectOptions are what to look at.
type InspectOptions struct {
	Config
	// Ports are wanted: their devices are looked at whether or not ours is attached.
	Ports map[PortName]Port
	// Targets are addresses whose way out of the node is looked up.
	Targets []netip.Addr
}

// Inspection is what a data plane has in the kernel, and what others have beside
// it, as seen from outside: whether or not the daemon runs.
type Inspection struct {
	// FileSystem is what the pins lie on: "bpf" as it should be, another one's
	// magic number, or empty where PinDir and all above it is not there.
	FileSystem string
	Device     uint64 // st_dev of the file system of PinDir; 0: there is none
	TCX        bool   // this kernel has tcx
	TCXError   string // why it is not known whether it has
	Layout     int    // of this version
	Layouts    []InspectedLayout
	Attached   []InspectedPort
	Devices    []InspectedDevice // of Attached and of the wanted ports
	Routes     map[netip.Addr]InspectedRoute
	Leftovers  []Leftover
	Unseen     map[string]string // what could not be looked at: why
}

// InspectedLayout is one folder of pinned maps.
type InspectedLayout struct {
	Path    string
	Number  int
	Maps    int
	Bytes   uint64   // that its maps take of the machine's memory
	Ports   int      // folders of pins of ports in it
	Missing []string // maps that a folder of this version should have
	Resized []string // maps whose change of size did not come to its end
	Strange []string // what is no pin of ours
	Sizes   map[string]InspectedSize
}

// InspectedSize is the size of a map that has not the one that is configured.
type InspectedSize struct{ Is, Want uint32 }

// InspectedPort is a folder of pins of a port.
type InspectedPort struct {
	Name   PortName
	Path   string
	Layout int
	Switch bool
	Index  int    // of the device; 0: it went
	Device string // its name; empty: it went
	Hooks  []InspectedHook
}

// InspectedHook is one pinned program.
type InspectedHook struct {
	Name     string // such as tcx-ingress
	Pin      string
	Attached bool
	Program  uint32 // the kernel's id; 0: unknown
}

// InspectedDevice is a device and what hangs on its hooks, in the order in which
// packets meet it.
type InspectedDevice struct {
	Name    string
	Switch  bool
	Exists  bool
	Up      bool
	Type    string // such as veth
	Index   int
	XDP     *ChainProgram
	Ingress []ChainProgram // tcx programs first, then filters of clsact
	Egress  []ChainProgram
	// Qdisc is what stands at the place of clsact: clsact, ingress, or empty.
	Qdisc string
}

// ChainProgram is one program, or filter, on a hook.
type ChainProgram struct {
	Hook     string // xdp, tcx, tc
	Ours     bool   // a pin of this instance knows it
	Alike    bool   // it is called as ours, and no pin of this instance knows it
	Program  string
	ID       uint32
	Detail   string // such as "priority 10, handle 0x1", "xdp generic"
	Priority uint16 // tc only
}

// InspectedRoute is the way out to an address.
type InspectedRoute struct {
	Device string // empty: there is no way
	Index  int
	Local  bool   // it is an address of the node itself
	Error  string // why there is no way
}

// Leftover is something of ours that nothing refers to any more.
type Leftover struct {
	Kind   string // port, filter, qdisc, layout, instance
	Object string
	Detail string
	// Remove removes it; nil: it might still be of use to somebody.
	Remove func() error
}
