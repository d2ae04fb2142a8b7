// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// maxTargets limits how many addresses are looked up in the routing tables.
const maxTargets = 2000

// services calls the function each for every Service.
func (x *examiner) services(each func(name string, s *state.Service)) {
	for _, o := range x.desired.objects {
		if s, ok := o.Value.(*state.Service); ok {
			each(o.Name, s)
		}
	}
}

// targets returns the addresses of all frontends and backends.
func (x *examiner) targets() []netip.Addr {
	seen := make(map[netip.Addr]bool)
	x.services(func(_ string, s *state.Service) {
		for _, b := range s.Backends {
			if len(seen) < maxTargets {
				seen[b.Addr.Addr()] = true
			}
		}
		for _, f := range s.Frontends {
			if len(seen) < maxTargets {
				seen[f.Addr.Addr()] = true
			}
		}
	})
	return slices.Collect(maps.Keys(seen))
}

// inspect reads the data plane for the following checks.
func (x *examiner) inspect() {
	x.plane = &datapath.Inspection{}
	if x.Inspect == nil {
		return
	}
	plane, err := x.Inspect(datapath.InspectOptions{Ports: x.interfaces(), Targets: x.targets(), PID: x.daemon.pid})
	if err != nil {
		x.hidden("programs, pins and hooks", err)
		return
	}
	x.plane = plane
	for what, why := range plane.Unseen {
		x.hidden(what, errors.New(why))
	}
}

func (x *examiner) checkPlane() {
	x.checkMount()
	for i := range x.plane.Layouts {
		x.checkLayout(&x.plane.Layouts[i])
	}
	wanted := x.interfaces()
	for i := range x.plane.Ports {
		x.checkPort(&x.plane.Ports[i], wanted)
	}
	for _, o := range x.desired.objects {
		if name, port, ok := portOf(o); ok {
			x.checkInterface(o, name, port)
		}
	}
	for i := range x.plane.Filters {
		x.checkFilter(&x.plane.Filters[i])
	}
	for i := range x.plane.Siblings {
		x.checkSibling(&x.plane.Siblings[i])
	}
}

// checkMount reports a daemon that pins to a mount that is visible only to itself.
func (x *examiner) checkMount() {
	if x.Config.Backend != "ebpf" || !x.daemon.running() || x.daemon.pid == 0 {
		return
	}
	dir := x.Config.PinDir
	its, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", x.daemon.pid, dir))
	if err != nil {
		return // the directory does not exist or is not readable
	}
	ours, err := os.Stat(dir)
	if a, ok := its.Sys().(*syscall.Stat_t); ok && err == nil {
		if b, ok := ours.Sys().(*syscall.Stat_t); ok && a.Dev == b.Dev {
			return
		}
	}
	x.find("error", "bpffs.private", dir, words{
		what: "is a different BPF file system for the daemon and for the host",
		why:  "pins end with the daemon: programs and connections do not outlive a restart",
		do:   "mount -t bpf bpf " + bpffs + " on the host, see that the unit has no PrivateMounts= of its own over it, and restart the daemon",
	}, nil)
}

func (x *examiner) checkLayout(l *datapath.InspectedLayout) {
	if !l.Current {
		if l.Maps > 0 || l.Ports > 0 {
			x.find("error", "pins.layout", l.Path, words{
				what: fmt.Sprintf("holds %d maps (%d MiB) and programs on %d devices, with a different layout than this version", l.Maps, l.Bytes>>20, l.Ports),
				why:  "they were pinned by another version of loxilight, and this version does not start while they exist",
				do:   "install that version again; or, ending forwarding and all connections, stop the daemon and run llcli detach",
			}, nil)
		}
		return
	}
	if (l.Maps > 0 || l.Ports > 0) && len(l.Missing) > 0 {
		x.checkMissing(l)
	}
	if len(l.Resized) > 0 && !x.daemon.running() {
		x.find("note", "pins.resize", l.Path, words{
			what: "has maps whose resizing was not completed: " + strings.Join(l.Resized, ", "),
			why:  "they use memory twice", do: "start the daemon: it completes the replacement",
		}, nil)
	}
	if len(l.Strange) > 0 {
		x.find("note", "pins.strange", l.Path, words{
			what: "contains entries that do not belong to loxilight: " + strings.Join(l.Strange, ", "),
			why:  "they are left alone; llcli detach does not remove unknown entries",
			do:   "remove them if no program needs them",
		}, nil)
	}
	x.checkSizes(l)
}

func (x *examiner) checkMissing(l *datapath.InspectedLayout) {
	var fix func() (string, error)
	do := "let connections end, then restart the daemon: it recreates everything"
	if l.Repin != nil {
		do = "pin them again before the next start"
		fix = func() (string, error) { return "pinned again " + strings.Join(l.Missing, ", "), l.Repin() }
	}
	x.find("error", "pins.missing", l.Path, words{
		what: "lacks the maps " + strings.Join(l.Missing, ", "),
		why:  "another program removed the pins: the programs continue with the maps, and the next start creates new, empty maps, so their entries are lost",
		do:   do,
	}, fix)
}

func (x *examiner) checkSizes(l *datapath.InspectedLayout) {
	var differ []string
	for name, size := range l.Sizes {
		differ = append(differ, fmt.Sprintf("%s %d rather than %d", name, size.Is, size.Want))
	}
	if len(differ) == 0 || l.Maps == 0 {
		return
	}
	slices.Sort(differ)
	x.find("note", "tables.size", l.Path, words{
		what: "has tables of another size than configured: " + strings.Join(differ, ", "),
		why:  "the configuration was changed since the start, or a table contained more entries than the new size, and kept its size",
		do:   "restart the daemon: it changes the sizes and keeps the entries",
	}, nil)
}

func (x *examiner) checkPort(p *datapath.InspectedPort, wanted map[datapath.PortName]datapath.Port) {
	port, isWanted := wanted[p.Name]
	object := "Interface/" + string(p.Name)
	switch {
	case !p.Current || p.Unknown:
		return // reported by checkLayout or reported as not visible
	case p.Index == 0 && x.desired.known && !isWanted && !x.daemon.running():
		x.find("warning", "pins.stale", p.Path, words{
			what: "are pins of a deleted device, for an Interface that no longer exists",
			why:  "they use memory, and the next start must process them", do: "start the daemon, or rm -r " + p.Path,
		}, x.alone("rm -r "+p.Path, p.Remove))
	case p.Index == 0:
		return // its device is missing; checkInterface or the daemon reports that
	case x.desired.known && !isWanted && !x.daemon.running() && p.Device != "lo":
		x.find("warning", "hooks.unwanted", "device "+p.Device, words{
			what: "has programs of " + object + " attached, which no longer exists",
			why:  "its packets are still balanced", do: "start the daemon: it detaches them",
		}, nil)
	case isWanted && port.Device != p.Device && !x.exists(&port):
		x.find("warning", "hooks.elsewhere", object, words{
			what: "is attached to the device " + p.Device + ", and device " + port.Device + ", which it names, does not exist: the device was renamed",
			why:  "services continue on the device, and rules and NAT match its packets by the name " + port.Device + ", not by " + p.Device,
			do: fmt.Sprintf("give the device its name again (ip link set %s name %s), or run llcli interface set %s --device %[1]s and change the rules that name %[2]s",
				p.Device, port.Device, p.Name),
		}, nil)
	case isWanted && port.Device != p.Device:
		x.find("warning", "hooks.elsewhere", object, words{
			what: "is attached to the device " + p.Device + ", but names " + port.Device,
			why:  "packets of the other device are not balanced", do: "start the daemon; if it runs, see llcli status",
		}, nil)
	}
	attached, want := 0, 2
	if p.Device == "lo" {
		want = 1 // packets from the host to its own addresses
	}
	var off []string
	for _, h := range p.Hooks {
		if strings.HasPrefix(h.Name, "xdp-") {
			continue // without this program, packets take the other path
		}
		if h.Attached {
			attached++
		} else {
			off = append(off, h.Name)
		}
	}
	if attached < want {
		x.find("error", "hooks.half", object, words{
			what: fmt.Sprintf("has %d of %d programs attached to %s%s", attached, want, p.Device, prefixed(", missing ", strings.Join(off, ", "))),
			why:  "connections through this device fail in one direction: another program detached one of ours",
			do:   "start the daemon, which repairs this within seconds; if it runs, see llcli status",
		}, nil)
	}
}

func (x *examiner) checkFilter(f *datapath.InspectedFilter) {
	object := fmt.Sprintf("device %s, %s", f.Device, f.Hook)
	if f.Remove == nil {
		x.find("warning", "filters.other", object, words{
			what: fmt.Sprintf("has a filter of another loxilight (program %d, %s)", f.Program, f.Holder),
			why:  "two instances must not share a device: each replaces the other's filter",
			do:   "give each instance devices of its own",
		}, nil)
		return
	}
	x.find("warning", "filters.stray", object, words{
		what: fmt.Sprintf("has a filter with our name (program %d), but no pin for it", f.Program),
		why:  "it continues without a daemon, with tables that are not maintained: packets may be forwarded to wrong backends",
		do:   fmt.Sprintf("tc filter del dev %s %s pref %d", f.Device, strings.TrimPrefix(f.Hook, "tc-"), 0x4c4c),
	}, func() (string, error) {
		return fmt.Sprintf("removed the filter from %s of %s; the qdisc stays, since its owner is unknown", f.Hook, f.Device), f.Remove()
	})
}

// checkSibling reports pins of an instance that does not exist.
func (x *examiner) checkSibling(s *datapath.InspectedSibling) {
	base := filepath.Base(s.Path)
	for _, dir := range []string{"/etc/", "/var/lib/"} {
		if _, err := os.Stat(x.path(dir + base)); err == nil {
			return
		}
	}
	if locked, _ := x.lockHolder(s.Path); locked {
		return
	}
	var fix func() (string, error)
	do := "run loxilightd --detach with a configuration that contains instance: " + strings.TrimPrefix(base, "loxilight-")
	if s.Remove != nil {
		do = "rm -r " + s.Path
		fix = func() (string, error) { return "rm -r " + s.Path, s.Remove() }
	}
	x.find("warning", "pins.orphan", s.Path, words{
		what: fmt.Sprintf("are pins of an instance that has neither configuration nor state nor a daemon; %d programs are attached by them", s.Attached),
		why:  "their maps take memory, and their programs continue as last configured", do: do,
	}, fix)
}

// alone wraps a repair that must not run concurrently with a daemon: while it runs, the repair
// holds the daemon's lock.
func (x *examiner) alone(did string, f func() error) func() (string, error) {
	if f == nil {
		return nil
	}
	return func() (string, error) {
		lock, err := os.OpenFile(filepath.Join(x.Config.RunDir, "loxilightd.lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err == nil {
			defer lock.Close() // releases the lock
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				return "", errors.New("the daemon has started in the meantime; it does this itself")
			}
		}
		return did, f()
	}
}
