// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// filterPriority is the priority of our cls_bpf filters; filters with lower numbers run first.
const (
	filterPriority = 0x4c4c
	filterHandle   = 1
	filterName     = "loxilight_" // and the name of the side
	firstName      = "loxilight_first_"
	firstPriority  = filterPriority - 1 // of the shadow program during a takeover
)

// filter is a program attached as a cls_bpf filter to a clsact qdisc, for kernels before 6.6. The
// name of its pin contains the index of its device.
type filter struct {
	namespace *namespace
	side      side
	index     int
	folder    string
	found     bool // an earlier run's filter is still attached
}

func (f *filter) moved(folder string) { f.folder = folder }

func (f *filter) replace() error {
	if !f.found {
		return nil // the device is gone, or another program removed the filter
	}
	return f.namespace.nl.FilterReplace(f.entry(f.side.of(&f.namespace.pair)))
}

// precede attaches the shadow program, and replaces the shadow program of an interrupted run.
func (f *filter) precede() error {
	if !f.found {
		return nil
	}
	b := f.entry(f.side.of(&f.namespace.first))
	b.Priority, b.Name = firstPriority, firstName+f.side.name
	if err := f.vacant(b); err != nil {
		return err
	}
	return f.namespace.nl.FilterReplace(b)
}

// removeFirst removes the shadow program of this run or an earlier one.
func (f *filter) removeFirst() error {
	filters, err := f.list(f.side.parent)
	for _, x := range filters {
		if b, ok := x.(*netlink.BpfFilter); ok && b.Priority == firstPriority && b.Name == firstName+f.side.name {
			if err := f.namespace.nl.FilterDel(b); err != nil && !gone(err) {
				return fmt.Errorf("remove the shadow filter: %w", err)
			}
		}
	}
	return err
}

func (f *filter) settle() error {
	if !f.found {
		return nil
	}
	return errors.Join(f.removeFirst(), pinClone(f.side.of(&f.namespace.pair), f.pin()))
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

// qdiscPin is the path of a pin that exists only if we created the qdisc.
func (f *filter) qdiscPin() string { return filepath.Join(f.folder, "clsact") }

func (f *filter) qdisc() netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: f.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// attach pins the program, then adds the filter or replaces the existing one.
func (f *filter) attach() error {
	program := f.side.of(&f.namespace.pair)
	if err := pinClone(program, f.pin()); err != nil {
		return err
	}
	added := false
	switch err := f.namespace.nl.QdiscAdd(f.qdisc()); {
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
		err = f.namespace.nl.FilterReplace(entry)
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

// vacant returns an error if another program's filter has the priority and handle of want, since it
// would be replaced.
func (f *filter) vacant(want *netlink.BpfFilter) error {
	filters, err := f.list(f.side.parent)
	for _, x := range filters {
		a := x.Attrs()
		if b, ok := x.(*netlink.BpfFilter); ok && a.Priority == want.Priority && a.Handle == want.Handle && b.Name != want.Name {
			return fmt.Errorf("priority %d is used by filter %q of another program: change that filter's priority", a.Priority, b.Name)
		}
	}
	return err
}

// pinClone pins a clone of program at path, replacing an existing pin. The program itself can still
// be pinned elsewhere.
func pinClone(program *ebpf.Program, path string) error {
	if err := pin.Remove(path); err != nil {
		return err
	}
	clone, err := program.Clone()
	if err != nil {
		return err
	}
	return errors.Join(clone.Pin(path), clone.Close())
}

// list returns the filters on one side of the device; none if the device or the qdisc does not
// exist.
func (f *filter) list(parent uint32) ([]netlink.Filter, error) {
	device := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: f.index}}
	filters, err := retry(func() ([]netlink.Filter, error) { return f.namespace.nl.FilterList(device, parent) })
	if gone(err) {
		return nil, nil
	}
	return filters, err
}

// mine returns our filter on its own side, or nil.
func (f *filter) mine() (*netlink.BpfFilter, error) {
	filters, err := f.list(f.side.parent)
	for _, x := range filters {
		if b, ok := x.(*netlink.BpfFilter); ok && x.Attrs().Priority == filterPriority && b.Name == filterName+f.side.name {
			return b, err
		}
	}
	return nil, err
}

// find returns our filter, or nil, and the number of other filters on the device.
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
	if b, _ := f.mine(); b != nil {
		return ebpf.ProgramID(b.Id)
	}
	return 0
}

func (f *filter) attached() bool {
	b, err := f.mine()
	if b == nil || err != nil {
		return false
	}
	_, err = os.Stat(f.pin())
	return err == nil
}

func (f *filter) mend() (bool, error) {
	b, err := f.mine()
	if b == nil || err != nil {
		return false, nil // the filter is not attached
	}
	if _, err := os.Stat(f.pin()); !errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	err = pinClone(f.side.of(&f.namespace.pair), f.pin())
	return err == nil, err
}

// detach removes the filter, and the qdisc if we created it and no other filter is on it. If our
// filter is already gone, the current qdisc is not ours.
func (f *filter) detach() error {
	if err := f.removeFirst(); err != nil {
		return err
	}
	b, others, err := f.find()
	if err != nil {
		return err
	}
	if b != nil {
		if err := f.namespace.nl.FilterDel(b); err != nil && !gone(err) {
			return fmt.Errorf("remove filter: %w", err)
		}
		if _, err := os.Stat(f.qdiscPin()); err == nil && others == 0 {
			if err := f.removeQdisc(); err != nil {
				return err
			}
		}
	}
	return pin.Remove(f.pin())
}

func (f *filter) removeQdisc() error {
	if err := f.namespace.nl.QdiscDel(f.qdisc()); err != nil && !gone(err) {
		return fmt.Errorf("remove clsact: %w", err)
	}
	return pin.Remove(f.qdiscPin())
}

// gone reports whether err means that the object to be removed does not exist.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

func (f *filter) close() {}
