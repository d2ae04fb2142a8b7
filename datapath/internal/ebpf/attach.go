// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hook is one program on one hook of one device.
type hook interface {
	name() string // such as tcx-ingress
	program() ebpf.ProgramID
	attached() bool
	// replace puts this run's program in the place of an earlier run's, at once and
	// in the least of time; settle does what is left to do then.
	replace() error
	settle() error
	// detach takes the program off, and the pins with it.
	detach() error
	// close lets go of it; the program stays.
	close()
}

// side is one of the two hooks of a device.
type side struct {
	name   string
	attach ebpf.AttachType
	parent uint32
	of     func(*zone) *ebpf.Program
}

var sides = []side{
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, func(z *zone) *ebpf.Program { return z.egress }},
	// Last: with it packets begin to be ours, and the other side is ready for them.
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, func(z *zone) *ebpf.Program { return z.ingress }},
}

// attachHooks attaches both programs to the device and pins them in folder.
func attachHooks(z *zone, how, folder string, index int) ([]hook, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	var hooks []hook
	for _, s := range sides {
		h, err := attachHook(z, s, how, folder, index)
		if err != nil {
			for _, h := range hooks {
				err = errors.Join(err, h.detach())
			}
			return nil, errors.Join(fmt.Errorf("attach to %s: %w", s.name, err), os.RemoveAll(folder))
		}
		hooks = append(hooks, h)
	}
	return hooks, nil
}

func attachHook(z *zone, s side, how, folder string, index int) (hook, error) {
	f := &filter{zone: z, side: s, index: index, folder: folder}
	if how == "tc" {
		return f, f.attach()
	}
	var l link.Link
	err := z.do(func() (err error) {
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: s.of(z), Attach: s.attach})
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) && how == "" {
		return f, f.attach()
	}
	if err != nil {
		return nil, err
	}
	t := &tcx{zone: z, link: l, side: s, index: index, pin: filepath.Join(folder, s.name)}
	if err := l.Pin(t.pin); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return t, nil
}

// openHooks finds the hooks that are pinned in folder, the programs of an earlier
// run still in place.
func openHooks(z *zone, folder string) (hooks []hook, index int, err error) {
	pins, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	for _, s := range sides {
		for _, pin := range pins {
			path := filepath.Join(folder, pin.Name())
			var h hook
			switch rest, tc := strings.CutPrefix(pin.Name(), "tc_"+s.name+"_"); {
			case tc:
				if index, err = strconv.Atoi(rest); err != nil {
					return nil, 0, err
				}
				f := &filter{zone: z, side: s, index: index, folder: folder}
				f.found = f.attached()
				h = f
			case pin.Name() == s.name:
				h, index, err = openTCX(z, s, path)
			default:
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			hooks = append(hooks, h)
		}
	}
	return hooks, index, nil
}

// tcx is a program attached by a link.
type tcx struct {
	zone  *zone
	link  link.Link
	side  side
	index int
	pin   string
}

func openTCX(z *zone, s side, pin string) (hook, int, error) {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil, 0, err
	}
	t := &tcx{zone: z, link: l, side: s, pin: pin}
	info, err := l.Info()
	if err != nil {
		return nil, 0, errors.Join(err, l.Close())
	}
	if x := info.TCX(); x != nil {
		t.index = int(x.Ifindex)
	}
	return t, t.index, nil
}

func (t *tcx) replace() error {
	if t.index == 0 {
		return nil // the device went: Update of the port attaches anew
	}
	if err := t.link.Update(t.side.of(t.zone)); !errors.Is(err, unix.ENOLINK) {
		return err
	}
	return nil
}

func (t *tcx) settle() error { return nil }

func (t *tcx) name() string { return "tcx-" + t.side.name }

func (t *tcx) program() ebpf.ProgramID {
	info, err := t.link.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

func (t *tcx) attached() bool {
	info, err := t.link.Info()
	if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return false
	}
	_, err = os.Stat(t.pin)
	return err == nil && int(info.TCX().Ifindex) == t.index
}

func (t *tcx) detach() error {
	err := t.link.Unpin()
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, t.link.Close())
}

func (t *tcx) close() { t.link.Close() }

// filterPriority is that of our cls_bpf filters: those with lower ones run first.
const (
	filterPriority = 0x4c4c
	filterHandle   = 1
	filterName     = "loxilight_" // and the name of the side
)

// filter is a program attached as a cls_bpf filter to a clsact qdisc, for kernels
// before 6.6. What it is attached to is known by the name of its pin.
type filter struct {
	zone   *zone
	side   side
	index  int
	folder string
	found  bool // an earlier run's filter is in place
}

func (f *filter) replace() error {
	if !f.found {
		return nil // the device went, or somebody took it off
	}
	return f.zone.nl.FilterReplace(f.entry(f.side.of(f.zone)))
}

func (f *filter) settle() error {
	if !f.found {
		return nil
	}
	return pinClone(f.side.of(f.zone), f.pin())
}

func (f *filter) entry(program *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: f.index,
			Parent:    f.side.parent,
			Handle:    filterHandle,
			Priority:  filterPriority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           program.FD(),
		Name:         filterName + f.side.name,
		DirectAction: true,
	}
}

func (f *filter) pin() string {
	return filepath.Join(f.folder, "tc_"+f.side.name+"_"+strconv.Itoa(f.index))
}

// qdiscPin is there where the qdisc is ours.
func (f *filter) qdiscPin() string { return filepath.Join(f.folder, "clsact") }

func (f *filter) qdisc() netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: f.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// attach pins the program, then adds the filter or puts the program in its place.
func (f *filter) attach() error {
	program := f.side.of(f.zone)
	if err := pinClone(program, f.pin()); err != nil {
		return err
	}
	added := false
	switch err := f.zone.nl.QdiscAdd(f.qdisc()); {
	case errors.Is(err, unix.EEXIST):
	case err != nil:
		return fmt.Errorf("add clsact: %w", err)
	default:
		added = true
		if err := pinClone(program, f.qdiscPin()); err != nil {
			return err
		}
	}
	err := f.vacant()
	if err == nil {
		err = f.zone.nl.FilterReplace(f.entry(program))
	}
	if err == nil {
		return nil
	}
	err = errors.Join(fmt.Errorf("add filter: %w", err), f.detach())
	if added {
		err = errors.Join(err, f.removeQdisc())
	}
	return err
}

// vacant returns an error where a stranger's filter has the place of ours, which
// would be replaced.
func (f *filter) vacant() error {
	filters, err := f.list(f.side.parent)
	for _, x := range filters {
		a := x.Attrs()
		if b, ok := x.(*netlink.BpfFilter); ok && a.Priority == filterPriority && a.Handle == filterHandle && b.Name != filterName+f.side.name {
			return fmt.Errorf("its priority %d is taken by filter %q, which is not ours: give that one another priority", filterPriority, b.Name)
		}
	}
	return err
}

// pinClone pins a clone of program, so that the program itself is free to be pinned
// elsewhere, in place of what was pinned there.
func pinClone(program *ebpf.Program, path string) error {
	if err := remove(path); err != nil {
		return err
	}
	clone, err := program.Clone()
	if err != nil {
		return err
	}
	return errors.Join(clone.Pin(path), clone.Close())
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// list returns the filters on one side of the device; none where there is no such
// device or qdisc.
func (f *filter) list(parent uint32) ([]netlink.Filter, error) {
	device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: f.index}}
	filters, err := retry(func() ([]netlink.Filter, error) { return f.zone.nl.FilterList(device, parent) })
	if gone(err) {
		return nil, nil
	}
	return filters, err
}

// find returns our filter, or nil, and how many others there are on the device.
func (f *filter) find() (found *netlink.BpfFilter, others int, err error) {
	for _, s := range sides {
		filters, err := f.list(s.parent)
		if err != nil {
			return nil, 0, fmt.Errorf("list filters: %w", err)
		}
		for _, x := range filters {
			b, ok := x.(*netlink.BpfFilter)
			ours := ok && x.Attrs().Priority == filterPriority && b.Name == filterName+s.name
			if ours && s.parent == f.side.parent {
				found = b
			} else {
				others++
			}
		}
	}
	return found, others, nil
}

func (f *filter) name() string { return "tc-" + f.side.name }

func (f *filter) program() ebpf.ProgramID {
	if b, _, _ := f.find(); b != nil {
		return ebpf.ProgramID(b.Id)
	}
	return 0
}

func (f *filter) attached() bool {
	b, _, err := f.find()
	return b != nil && err == nil
}

// detach removes the filter, and the qdisc where it is ours and nobody else is on
// it. Where our filter went with its qdisc, one that is there now is a stranger's.
func (f *filter) detach() error {
	b, others, err := f.find()
	if err != nil {
		return err
	}
	if b != nil {
		if err := f.zone.nl.FilterDel(b); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove filter: %w", err)
		}
		if _, err := os.Stat(f.qdiscPin()); err == nil && others == 0 {
			if err := f.removeQdisc(); err != nil {
				return err
			}
		}
	}
	return remove(f.pin())
}

func (f *filter) removeQdisc() error {
	if err := f.zone.nl.QdiscDel(f.qdisc()); err != nil && !gone(err) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return nil
}

// gone reports whether err says that what was to be removed is not there.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

func (f *filter) close() {}
