// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/dump"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// filterPriority is the priority of our cls_bpf filters; filters with lower numbers run first.
const (
	filterPriority = 0x4c4c
	filterHandle   = 1
	qdiscNote      = "clsact"     // exists only if we created the qdisc
	filterName     = "loxilight_" // and the name of the side
	shadowName     = "loxilight_first_"
	shadowPriority = filterPriority - 1 // of the shadow program during a takeover
)

// Filter is a program attached as a cls_bpf filter to a clsact qdisc, for kernels before 6.6. The
// name of its pin contains the index of its device.
type Filter struct {
	namespace *Netns
	side      Side
	index     int
	folder    string
	found     bool // an earlier run's filter is still attached
}

// NewFilter returns the filter on one side of the device with an ifindex; its pins are in folder.
// It may or may not be attached. If z is nil, only Name may be called.
func NewFilter(z *Netns, s Side, index int, folder string) *Filter {
	return &Filter{namespace: z, side: s, index: index, folder: folder}
}

// Moved implements [Attachment].
func (f *Filter) Moved(folder string) { f.folder = folder }

// Replace implements [Attachment].
func (f *Filter) Replace() error {
	if !f.found {
		return nil // the device is gone, or another program removed the filter
	}
	if err := f.namespace.loadFor(f.side); err != nil {
		return err
	}
	if _, err := f.namespace.pinSlow(f.side, f.folder); err != nil {
		return err
	}
	return f.namespace.Netlink.FilterReplace(f.entry(f.side.of(&f.namespace.Pair)))
}

// AttachShadow implements [Attachment]. It replaces the shadow program of an interrupted run.
func (f *Filter) AttachShadow() error {
	if !f.found || f.side.unshadowed {
		return nil
	}
	b := f.entry(f.side.of(&f.namespace.shadow))
	b.Priority, b.Name = shadowPriority, shadowName+f.side.Name
	if err := f.vacant(b); err != nil {
		return err
	}
	if _, err := f.namespace.shadow.pinSlow(f.side, f.folder); err != nil {
		return err
	}
	return f.namespace.Netlink.FilterReplace(b)
}

// removeShadow removes the shadow program of this run or an earlier one.
func (f *Filter) removeShadow() error {
	filters, err := f.list(f.side.Parent)
	for _, x := range filters {
		if b, ok := x.(*netlink.BpfFilter); ok && b.Priority == shadowPriority && b.Name == shadowName+f.side.Name {
			if err := f.namespace.Netlink.FilterDel(b); err != nil && !gone(err) {
				return fmt.Errorf("remove the shadow filter: %w", err)
			}
		}
	}
	return err
}

// Finish implements [Attachment].
func (f *Filter) Finish() error {
	if !f.found {
		return nil
	}
	if err := f.removeShadow(); err != nil {
		return err
	}
	return errors.Join(f.namespace.unpinOtherSlow(f.side, f.folder), pinClone(f.side.of(&f.namespace.Pair), f.pinPath()))
}

func (f *Filter) entry(program *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: f.index,
			Parent:    f.side.Parent,
			Handle:    filterHandle,
			Priority:  f.side.priority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           program.FD(),
		Name:         filterName + f.side.Name,
		DirectAction: true,
	}
}

func (f *Filter) pinPath() string {
	return filepath.Join(f.folder, "tc_"+f.side.Name+"_"+strconv.Itoa(f.index))
}

// qdiscPin is the path of a pin that exists only if we created the qdisc.
func (f *Filter) qdiscPin() string { return filepath.Join(f.folder, qdiscNote) }

func (f *Filter) qdisc() netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: f.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// attach pins the program, then adds the filter or replaces the existing one.
func (f *Filter) attach() error {
	if err := f.namespace.loadFor(f.side); err != nil {
		return err
	}
	program := f.side.of(&f.namespace.Pair)
	if err := pinClone(program, f.pinPath()); err != nil {
		return err
	}
	if _, err := f.namespace.pinSlow(f.side, f.folder); err != nil {
		return err
	}
	added := false
	switch err := f.namespace.Netlink.QdiscAdd(f.qdisc()); {
	case errors.Is(err, unix.EEXIST):
	case err != nil:
		return fmt.Errorf("add clsact: %w", err)
	default:
		added = true
		if err := pinClone(program, f.qdiscPin()); err != nil {
			return err
		}
	}
	entry := f.entry(program)
	err := f.vacant(entry)
	if err == nil {
		err = f.namespace.Netlink.FilterReplace(entry)
	}
	if err == nil {
		return nil
	}
	err = errors.Join(fmt.Errorf("add filter: %w", err), f.Detach())
	if added {
		err = errors.Join(err, f.removeQdisc())
	}
	return err
}

// vacant returns an error if another program's filter has the priority and handle of want, since it
// would be replaced.
func (f *Filter) vacant(want *netlink.BpfFilter) error {
	filters, err := f.list(f.side.Parent)
	for _, x := range filters {
		a := x.Attrs()
		if b, ok := x.(*netlink.BpfFilter); ok && a.Priority == want.Priority && a.Handle == want.Handle && b.Name != want.Name {
			return fmt.Errorf("priority %d is used by filter %q of another program: change that filter's priority", a.Priority, b.Name)
		}
	}
	return err
}

// list returns the filters on one side of the device; none if the device or the qdisc does not
// exist.
func (f *Filter) list(parent uint32) ([]netlink.Filter, error) {
	device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: f.index}}
	filters, err := dump.Retry(func() ([]netlink.Filter, error) { return f.namespace.Netlink.FilterList(device, parent) })
	if gone(err) {
		return nil, nil
	}
	return filters, err
}

// mine returns our filter on its own side, or nil.
func (f *Filter) mine() (*netlink.BpfFilter, error) {
	filters, err := f.list(f.side.Parent)
	for _, x := range filters {
		if b, ok := x.(*netlink.BpfFilter); ok && f.side.Owns(b) {
			return b, err
		}
	}
	return nil, err
}

// Find returns our filter, or nil, and the number of other filters on the device.
func (f *Filter) Find() (found *netlink.BpfFilter, others int, err error) {
	for _, s := range Sides() {
		filters, err := f.list(s.Parent)
		if err != nil {
			return nil, 0, fmt.Errorf("list filters: %w", err)
		}
		for _, x := range filters {
			b, ok := x.(*netlink.BpfFilter)
			if ok && f.side.Owns(b) && s.Parent == f.side.Parent {
				found = b
			} else {
				others++
			}
		}
	}
	return found, others, nil
}

// Name implements [Attachment].
func (f *Filter) Name() string { return "tc-" + f.side.Name }

// Program implements [Attachment].
func (f *Filter) Program() ebpf.ProgramID {
	if b, _ := f.mine(); b != nil {
		return ebpf.ProgramID(b.Id)
	}
	return 0
}

// Attached implements [Attachment].
func (f *Filter) Attached() bool {
	b, err := f.mine()
	if b == nil || err != nil {
		return false
	}
	_, err = os.Stat(f.pinPath())
	return err == nil
}

// Repin implements [Attachment].
func (f *Filter) Repin() (bool, error) {
	b, err := f.mine()
	if b == nil || err != nil {
		return false, nil // the filter is not attached
	}
	pinned, err := f.namespace.pinSlow(f.side, f.folder)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat(f.pinPath()); !errors.Is(err, os.ErrNotExist) {
		return pinned, nil
	}
	err = pinClone(f.side.of(&f.namespace.Pair), f.pinPath())
	return err == nil, err
}

func (f *Filter) isPinned() bool {
	_, err := os.Lstat(f.pinPath())
	return !errors.Is(err, os.ErrNotExist) && f.namespace.isSlowPinned(f.side, f.folder)
}

// Detach implements [Attachment]. It removes the filter, and the qdisc if we created it and no
// other filter is on it. If our filter is already gone, the current qdisc is not ours.
func (f *Filter) Detach() error {
	if err := f.removeShadow(); err != nil {
		return err
	}
	b, others, err := f.Find()
	if err != nil {
		return err
	}
	if b != nil {
		if err := f.namespace.Netlink.FilterDel(b); err != nil && !gone(err) {
			return fmt.Errorf("remove filter: %w", err)
		}
		if _, err := os.Stat(f.qdiscPin()); err == nil {
			if others == 0 {
				err = f.removeQdisc()
			} else {
				err = f.leaveQdisc()
			}
			if err != nil {
				return err
			}
		}
	}
	return pin.Remove(f.pinPath())
}

func (f *Filter) removeQdisc() error {
	if err := f.namespace.Netlink.QdiscDel(f.qdisc()); err != nil && !gone(err) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return pin.Remove(f.qdiscPin())
}

// gone reports whether err means that the object to be removed does not exist.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// Close implements [Attachment].
func (f *Filter) Close() {}
