// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/netfilter"
)

// inspector reads the state of the kernel and changes nothing.
type inspector struct {
	datapath.InspectOptions
	out        *datapath.Inspection
	namespaces [2]*hook.Netns // nil: does not exist
	// links are the pinned links, filters the cls_bpf filters that pins name.
	links   map[link.ID]bool
	filters map[filterKey]bool
	mirrors map[filterKey]bool // filters of mirrors
	inXDP   map[xdpKey]bool
	maps    map[ebpf.MapID]bool // pinned maps
}

// filterKey identifies the attachment point of one of our filters.
type filterKey struct {
	namespace uint8
	index     int
	parent    uint32
}

// xdpKey identifies an XDP program on a device.
type xdpKey struct {
	namespace uint8
	index     int
	program   uint32
}

// Read returns our pins and attached programs, and other programs on the hooks of the same devices.
// listDevices lists the devices of a namespace by name; the host's become Found. Parts that could
// not be read are in Unseen. An error means that nothing could be read.
func Read(o datapath.InspectOptions, listDevices func(*hook.Netns) (map[string]datapath.Device, error)) (*datapath.Inspection, error) {
	x := &inspector{
		InspectOptions: o,
		out:            &datapath.Inspection{Layout: pin.LayoutVersion, Routes: map[netip.Addr]datapath.InspectedRoute{}, Unseen: map[string]string{}},
		links:          map[link.ID]bool{}, filters: map[filterKey]bool{}, mirrors: map[filterKey]bool{}, inXDP: map[xdpKey]bool{}, maps: map[ebpf.MapID]bool{},
	}
	if err := x.openNamespaces(); err != nil {
		return nil, err
	}
	defer x.close()
	x.pins()
	for id, z := range x.namespaces {
		if z != nil {
			x.devices(uint8(id), z)
			x.strayFilters(uint8(id), z)
		}
	}
	x.missingDevices()
	for _, t := range o.Targets {
		x.out.Routes[t] = x.route(t)
	}
	x.siblings()
	found, err := listDevices(x.namespaces[hook.Host])
	if err != nil {
		x.unseen("devices of the host", err)
	}
	x.out.Found = found
	drops, err := netfilter.Drops()
	if err != nil {
		x.unseen("netfilter's chains", err)
	}
	x.out.ForwardDrops = drops
	return x.out, nil
}

func (x *inspector) openNamespaces() (err error) {
	if x.namespaces[hook.Host], err = hook.OpenNetns(hook.Host, ""); err != nil {
		return err
	}
	if x.SwitchNamespace == "" || x.SwitchNamespace == "host" {
		return nil
	}
	x.namespaces[hook.Switch], err = hook.OpenNetns(hook.Switch, x.SwitchNamespace)
	if x.out.NoSwitch = errors.Is(err, datapath.ErrAbsent); err != nil && !x.out.NoSwitch {
		x.unseen("network namespace "+x.SwitchNamespace, err)
	}
	return nil
}

// close closes the namespaces. Remove functions open them again if they need them.
func (x *inspector) close() {
	for _, z := range x.namespaces {
		if z != nil {
			_ = z.Close() // only read from
		}
	}
}

func (x *inspector) unseen(what string, err error) { x.out.Unseen[what] = err.Error() }

// pins reads the folders of all layouts.
func (x *inspector) pins() {
	if !pin.OnBPFFS(x.PinDir) {
		return
	}
	folders, err := os.ReadDir(x.PinDir)
	if err != nil {
		x.unseen(x.PinDir, err)
		return
	}
	for _, f := range folders {
		if strings.HasPrefix(f.Name(), pin.DirPrefix) && f.IsDir() && !pin.IsUse(x.PinDir, filepath.Join(x.PinDir, f.Name())) {
			x.layout(filepath.Join(x.PinDir, f.Name()))
		}
	}
}

func (x *inspector) layout(dir string) {
	l := datapath.InspectedLayout{Path: dir, Current: dir == pin.Dir(x.PinDir), Sizes: map[string]datapath.InspectedSize{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		x.unseen(dir, err)
		return
	}
	wanted := x.wantedIn(&l)
	there := make(map[string]bool)
	for _, e := range entries {
		name, _, _ := pin.SplitGeneration(e.Name())
		there[name] = true
		if e.IsDir() {
			if e.Name() != "ports" && e.Name() != "mirrors" {
				l.Strange = append(l.Strange, e.Name())
			}
			continue
		}
		x.pinnedMap(&l, filepath.Join(dir, e.Name()), wanted)
	}
	for name := range wanted {
		if !there[name] {
			l.Missing = append(l.Missing, name)
		}
	}
	slices.Sort(l.Missing)
	for id := range x.namespaces {
		x.mirrorPins(uint8(id), dir)
		l.Ports += x.portFolders(uint8(id), l.Current, filepath.Join(dir, "ports", strconv.Itoa(id)))
	}
	if len(l.Missing) > 0 {
		x.repinnable(&l)
	}
	x.out.Layouts = append(x.out.Layouts, l)
}

// wantedIn returns the maps that a folder should contain if it was created by a daemon of this
// version, or of a version with the same maps.
func (x *inspector) wantedIn(l *datapath.InspectedLayout) map[string]*ebpf.MapSpec {
	spec, err := kernel.LoadKernel()
	if err != nil || !l.Current {
		return nil
	}
	if m, err := pin.OpenOrigin(l.Path); err == nil {
		m.Close() // only closes a file descriptor
		if pin.ReadOrigin(l.Path).Sum != pin.LayoutSum(spec.Maps) {
			return nil
		}
	}
	return pin.Wanted(spec.Maps, x.Tables)
}

func (x *inspector) pinnedMap(l *datapath.InspectedLayout, path string, wanted map[string]*ebpf.MapSpec) {
	name := filepath.Base(path)
	want := wanted[name]
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		l.Strange = append(l.Strange, name)
		return
	}
	defer m.Close()
	l.Maps++
	if base, number, ok := pin.SplitGeneration(name); ok && number > 0 {
		l.Resized = append(l.Resized, base)
	} else if wanted != nil && want == nil && name != pin.OriginName {
		l.Strange = append(l.Strange, name)
	} else if is, wants, ok := pin.SizesOf(m, want); ok {
		l.Sizes[name] = datapath.InspectedSize{Is: is, Want: wants}
	}
	info, err := m.Info()
	if err != nil {
		return
	}
	if id, ok := info.ID(); ok {
		x.maps[id] = true
	}
	l.Bytes += pin.MemoryOf(m, want)
}

// portFolders reads the folders of the ports of a namespace, and returns their number.
func (x *inspector) portFolders(id uint8, current bool, dir string) int {
	folders, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		x.unseen(dir, err)
		return 0
	}
	for _, f := range folders {
		path := filepath.Join(dir, f.Name())
		p := datapath.InspectedPort{Name: pin.PortOf(f.Name()), Path: path, Current: current, Switch: id == hook.Switch}
		x.portHooks(id, &p)
		if z := x.namespaces[id]; z != nil && p.Index != 0 {
			l, err := z.Netlink.LinkByIndex(p.Index)
			if err == nil {
				p.Device = l.Attrs().Name
			} else if !errors.As(err, new(netlink.LinkNotFoundError)) {
				x.unseen(path, err)
				p.Unknown = true
			}
		}
		if p.Device == "" && !p.Unknown {
			p.Index = 0
			p.Remove = func() error { return x.removePort(id, path) }
		}
		x.out.Ports = append(x.out.Ports, p)
	}
	return len(folders)
}

// portHooks reads the pins of a port.
func (x *inspector) portHooks(id uint8, p *datapath.InspectedPort) {
	pins, err := os.ReadDir(p.Path)
	if err != nil {
		x.unseen(p.Path, err)
		p.Unknown = true
		return
	}
	for _, mode := range hook.XDPModes() {
		if !slices.ContainsFunc(pins, func(e fs.DirEntry) bool { return e.Name() == hook.XDPPin(mode) }) {
			continue
		}
		h, path := datapath.InspectedHook{Name: "xdp-" + mode.String()}, filepath.Join(p.Path, hook.XDPPin(mode))
		index, err := x.pinnedLink(path, &h)
		if err != nil {
			x.unseen(path, err)
			p.Unknown = true
		}
		x.inXDP[xdpKey{id, index, h.Program}] = true
		p.Index = max(p.Index, index)
		p.Hooks = append(p.Hooks, h)
	}
	for _, s := range hook.PortSides() {
		for _, entry := range pins {
			h := datapath.InspectedHook{Name: "tcx-" + s.Name}
			index := 0
			switch rest, tc := s.CutFilterPin(entry.Name()); {
			case tc:
				if index, err = strconv.Atoi(rest); err != nil {
					continue
				}
				f := hook.NewFilter(x.namespaces[id], s, index, p.Path)
				h.Name = f.Name()
				if x.namespaces[id] != nil {
					h.Attached, h.Program = f.Attached(), uint32(f.Program())
				}
				x.filters[filterKey{id, index, s.Parent}] = true
			case entry.Name() == s.Name:
				if index, err = x.pinnedLink(filepath.Join(p.Path, entry.Name()), &h); err != nil {
					x.unseen(filepath.Join(p.Path, entry.Name()), err)
					p.Unknown = true
				}
			default:
				continue
			}
			if index != 0 {
				p.Index = index
			}
			p.Hooks = append(p.Hooks, h)
		}
	}
}

// pinnedLink reads a link into h, and returns the ifindex of its device, or 0 if the link is
// severed.
func (x *inspector) pinnedLink(pin string, h *datapath.InspectedHook) (index int, err error) {
	l, err := link.LoadPinnedLink(pin, nil) // links have no read-only mode
	if err != nil {
		return 0, err
	}
	defer l.Close() // the pin holds it
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	x.links[info.ID] = true
	index = hook.DeviceIndex(info)
	h.Attached, h.Program = index != 0, uint32(info.Program)
	return index, nil
}

// removePort removes the folder of a port whose device is gone, if the device still does not exist.
func (x *inspector) removePort(id uint8, path string) error {
	name := ""
	if id == hook.Switch {
		name = x.SwitchNamespace
	}
	z, err := hook.OpenNetns(id, name)
	if errors.Is(err, datapath.ErrAbsent) {
		return os.RemoveAll(path)
	}
	if err != nil {
		return err
	}
	defer z.Close() // only read from
	now := &inspector{InspectOptions: x.InspectOptions, out: &datapath.Inspection{Unseen: map[string]string{}}, links: map[link.ID]bool{}, filters: map[filterKey]bool{}}
	now.namespaces[id] = z
	p := datapath.InspectedPort{Path: path}
	now.portHooks(id, &p)
	if p.Unknown {
		return errors.New("its pins cannot be read")
	}
	if p.Index != 0 {
		if _, err := z.Netlink.LinkByIndex(p.Index); err == nil {
			return errors.New("its device exists again")
		}
	}
	return os.RemoveAll(path)
}

// route looks up the route to an address, in the host's namespace first.
func (x *inspector) route(target netip.Addr) (r datapath.InspectedRoute) {
	for _, z := range x.namespaces {
		if z == nil {
			continue
		}
		routes, err := z.Netlink.RouteGet(target.AsSlice())
		if err != nil || len(routes) == 0 {
			if r.Error == "" {
				r.Error = "no route exists"
				if err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
					r.Error = err.Error()
				}
			}
			continue
		}
		r = datapath.InspectedRoute{Local: routes[0].Type == unix.RTN_LOCAL}
		if l, err := z.Netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
			r.Device = l.Attrs().Name
		}
		return r
	}
	return r
}
