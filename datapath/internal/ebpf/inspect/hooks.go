// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// devices reads the hooks of all devices of a namespace to which our programs are or should be
// attached.
func (x *inspector) devices(id uint8, z *hook.Netns) {
	wanted := make(map[string]bool)
	for _, p := range x.Ports {
		if (x.namespaceOf(p) == hook.Switch) == (id == hook.Switch) {
			wanted[p.Device] = true
		}
	}
	for _, p := range x.out.Ports {
		if p.Switch == (id == hook.Switch) && p.Device != "" {
			wanted[p.Device] = true
		}
	}
	links, err := linkAttrs(z)
	if err != nil {
		x.unseen("devices of namespace "+z.Label(), err)
		return
	}
	for _, l := range links {
		if wanted[l.Attrs().Name] {
			d := x.device(id, z, l)
			x.tags(z, &d, links)
			x.out.Devices = append(x.out.Devices, d)
		}
	}
}

func (x *inspector) namespaceOf(p datapath.Port) uint8 {
	if p.Switch && x.SwitchNamespace != "" && x.SwitchNamespace != "host" {
		return hook.Switch
	}
	return hook.Host
}

// missingDevices adds the wanted devices that do not exist.
func (x *inspector) missingDevices() {
	for _, p := range x.Ports {
		inSwitch := x.namespaceOf(p) == hook.Switch
		there := slices.ContainsFunc(x.out.Devices, func(d datapath.InspectedDevice) bool { return d.Name == p.Device && d.Switch == inSwitch })
		if !there {
			x.out.Devices = append(x.out.Devices, datapath.InspectedDevice{Name: p.Device, Switch: inSwitch})
		}
	}
	slices.SortFunc(x.out.Devices, func(a, b datapath.InspectedDevice) int { return cmp.Compare(a.Name, b.Name) })
}

func (x *inspector) device(id uint8, z *hook.Netns, l netlink.Link) datapath.InspectedDevice {
	a := l.Attrs()
	d := datapath.InspectedDevice{
		Name: a.Name, Switch: id == hook.Switch, Exists: true, Up: a.Flags&net.FlagUp != 0, Type: l.Type(), Index: a.Index,
	}
	if a.Xdp != nil && a.Xdp.Attached {
		mode := map[uint32]string{nl.XDP_ATTACHED_DRV: "native", nl.XDP_ATTACHED_SKB: "generic", nl.XDP_ATTACHED_HW: "on the device"}[a.Xdp.AttachMode]
		d.XDP = &datapath.ChainProgram{Hook: "xdp", Program: hook.ProgramName(ebpf.ProgramID(a.Xdp.ProgId)), ID: a.Xdp.ProgId, Detail: mode}
		d.XDP.Ours = x.inXDP[xdpKey{id, a.Index, a.Xdp.ProgId}]
	}
	for _, s := range hook.Sides() {
		chain := slices.Concat(x.tcxChain(z, a, s), x.filterChain(id, z, l, s))
		if s.Parent == netlink.HANDLE_MIN_INGRESS {
			d.Ingress = chain
		} else {
			d.Egress = chain
		}
	}
	qdiscs, err := dump.Retry(func() ([]netlink.Qdisc, error) { return z.Netlink.QdiscList(l) })
	if err != nil {
		x.unseen("qdiscs of "+a.Name, err)
	}
	d.IngressQdisc = slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "ingress" })
	return d
}

// tcxChain returns the tcx programs on one side of a device, in order.
func (x *inspector) tcxChain(z *hook.Netns, a *netlink.LinkAttrs, s hook.Side) (chain []datapath.ChainProgram) {
	err := z.Do(func() error {
		r, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: s.AttachType})
		if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
			return nil // this kernel has no tcx
		}
		if err != nil {
			return err
		}
		for _, p := range r.Programs {
			c := datapath.ChainProgram{Hook: "tcx", ID: uint32(p.ID), Program: hook.ProgramName(p.ID)}
			if id, ok := p.LinkID(); ok {
				c.Ours = x.links[id]
			}
			chain = append(chain, c)
		}
		return nil
	})
	if err != nil {
		x.unseen("tcx "+s.Name+" of "+a.Name, err)
	}
	return chain
}

// filterChain returns the filters on one side of a device, in order.
func (x *inspector) filterChain(id uint8, z *hook.Netns, l netlink.Link, s hook.Side) (chain []datapath.ChainProgram) {
	filters, err := dump.Retry(func() ([]netlink.Filter, error) { return z.Netlink.FilterList(l, s.Parent) })
	if err != nil {
		return nil // no clsact
	}
	for _, f := range filters {
		a := f.Attrs()
		c := datapath.ChainProgram{Hook: "tc", Program: f.Type(), Detail: fmt.Sprintf("priority %d", a.Priority)}
		if b, ok := f.(*netlink.BpfFilter); ok {
			c.ID, c.Program = uint32(b.Id), b.Name
			c.Ours = s.Owns(b) && x.filters[filterKey{id, a.LinkIndex, s.Parent}] || x.isMirror(id, b) ||
				hook.NamesSide().Owns(b) && x.filters[filterKey{id, a.LinkIndex, s.Parent}]
		}
		chain = append(chain, c)
	}
	return chain
}

// strayFilters searches all devices of a namespace for filters with our name but without a pin.
func (x *inspector) strayFilters(id uint8, z *hook.Netns) {
	links, err := linkAttrs(z)
	if err != nil {
		return // reported by devices
	}
	for _, l := range links {
		for _, s := range hook.Sides() {
			index := l.Attrs().Index
			b, _, err := hook.NewFilter(z, s, index, "").Find()
			if err != nil {
				x.unseen("filters of "+l.Attrs().Name, err)
			}
			if b == nil || x.filters[filterKey{id, index, s.Parent}] {
				continue
			}
			f := datapath.InspectedFilter{Device: l.Attrs().Name, Switch: id == hook.Switch, Hook: "tc-" + s.Name, Program: uint32(b.Id)}
			if f.Holder = x.holder(ebpf.ProgramID(b.Id)); f.Holder == "" {
				f.Remove = func() error { return x.removeFilter(id, s, index, b.Id) }
			}
			x.out.Filters = append(x.out.Filters, f)
		}
	}
}

// holder names the other user of a program's maps; "" if the program is ours, that is, if its maps
// are pinned in our folder.
func (x *inspector) holder(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "unknown: " + err.Error()
	}
	defer p.Close() // only closes a file descriptor
	info, err := p.Info()
	if err != nil {
		return "unknown: " + err.Error()
	}
	used := make(map[ebpf.MapID]bool)
	ids, _ := info.MapIDs() // older kernels return none
	for _, id := range ids {
		if x.maps[id] {
			return ""
		}
		used[id] = true
	}
	if dir := otherPins(used); dir != "" {
		return "pins in " + dir
	}
	return processWith(used)
}

// otherPins returns a folder of pins that contains one of the maps.
func otherPins(used map[ebpf.MapID]bool) string {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "bpf" {
			continue
		}
		for _, pattern := range []string{"layout-*/ll_*", "*/layout-*/ll_*"} {
			pins, _ := filepath.Glob(filepath.Join(f[1], pattern)) // the pattern is valid
			for _, pin := range pins {
				if id, ok := pinnedID(pin); ok && used[id] {
					return filepath.Dir(pin)
				}
			}
		}
	}
	return ""
}

func pinnedID(pin string) (ebpf.MapID, bool) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, false
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, false
	}
	return info.ID()
}

// processWith searches /proc for a process that has one of the maps open.
func processWith(used map[ebpf.MapID]bool) string {
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*") // the pattern is valid
	for _, path := range infos {
		if id, ok := mapOfDescriptor(path); ok && used[id] {
			return "process " + strings.Split(path, "/")[2]
		}
	}
	return ""
}

// mapOfDescriptor returns the map to which a file descriptor refers, given the path of its fdinfo.
func mapOfDescriptor(path string) (ebpf.MapID, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false // closed in the meantime
	}
	for line := range strings.Lines(string(text)) {
		var id uint32
		if n, _ := fmt.Sscanf(line, "map_id:\t%d", &id); n == 1 {
			return ebpf.MapID(id), true
		}
	}
	return 0, false
}

// removeFilter removes a filter, if it is still the same one.
func (x *inspector) removeFilter(id uint8, s hook.Side, index, program int) error {
	name := ""
	if id == hook.Switch {
		name = x.SwitchNamespace
	}
	z, err := hook.OpenNetns(id, name)
	if err != nil {
		return err
	}
	defer z.Close() // nothing to flush
	b, _, err := hook.NewFilter(z, s, index, "").Find()
	if b == nil || err != nil {
		return err
	}
	if b.Id != program {
		return errors.New("it now contains another program")
	}
	if err := z.Netlink.FilterDel(b); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove filter: %w", err)
	}
	return nil
}
