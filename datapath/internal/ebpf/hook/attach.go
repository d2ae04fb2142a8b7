// SPDX-License-Identifier: Apache-2.0

package hook

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
)

// Attachment is a program on one hook of one device, with its pin. Name, Program and Attached are
// safe for concurrent use; the other methods are not.
type Attachment interface {
	// Name returns the kind and the side, such as tcx-ingress.
	Name() string
	// Program returns the id of the attached program, or 0 if no program is attached or its id
	// cannot be read.
	Program() ebpf.ProgramID
	// Attached reports whether the program is attached and pinned.
	Attached() bool
	// AttachShadow attaches this run's shadow program before an earlier run's program. Replace
	// atomically replaces the earlier run's program by this run's. Finish does the remaining work
	// and removes the shadow program. All do nothing if the device is gone.
	AttachShadow() error
	Replace() error
	Finish() error
	// Repin restores the pin of an attached program if it is missing, and reports whether it did.
	Repin() (bool, error)
	// Detach detaches the program and removes its pins.
	Detach() error
	// Moved records that the pins have been moved to another folder.
	Moved(folder string)
	// Close closes the handles; the program stays attached.
	Close()
}

// Side is one of the two tc hooks of a device.
type Side struct {
	Name       string          // "ingress" or "egress"; also the name of the pin of a tcx link
	AttachType ebpf.AttachType // of tcx links
	Parent     uint32          // of filters: the handle of the qdisc
	priority   uint16          // of filters
	anchor     link.Anchor     // of tcx links: where they are inserted; nil: behind all others
	of         func(*Pair) *ebpf.Program
	load       func(*Netns) error // loads the program, unless already done; nil: it is loaded
	unshadowed bool               // has no shadow program
}

// Sides returns the tc hooks of a device in the order in which programs are attached: egress, then
// ingress, since processing begins once ingress is attached.
func Sides() [2]Side {
	return [2]Side{
		{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, filterPriority, nil, func(p *Pair) *ebpf.Program { return p.Egress }, nil, false},
		{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, filterPriority, nil, func(p *Pair) *ebpf.Program { return p.Ingress }, nil, false},
	}
}

// CutFilterPin returns the ifindex, as text, in the name of the pin of a filter on this side. found
// is false if name is not the name of such a pin.
func (s Side) CutFilterPin(name string) (index string, found bool) {
	return strings.CutPrefix(name, "tc_"+s.Name+"_")
}

// Owns reports whether a filter on this side has our priority and name.
func (s Side) Owns(b *netlink.BpfFilter) bool {
	return b.Priority == s.priority && b.Name == filterName+s.Name
}

// isIngress reports whether ll_tc_ingress is the program of this side.
func (s Side) isIngress() bool { return s.Name == "ingress" }

// sidesOf returns the hooks of a device to which programs are attached: only egress on the loopback
// device.
func sidesOf(index int) []Side {
	sides := Sides()
	if index == LoopbackIndex {
		return sides[:1]
	}
	return sides[:]
}

// Attach attaches the programs to both tc hooks of a device, or only to egress of the loopback
// device, and pins them in folder. index is the ifindex of the device. how is "tcx", "tc" for
// cls_bpf filters, or empty for tcx if the kernel has it. After an error nothing is attached. The
// error wraps [unix.ENODEV] if the device is gone.
func (z *Netns) Attach(how, folder string, index int) ([]Attachment, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	var hooks []Attachment
	for _, s := range sidesOf(index) {
		h, err := attachHook(z, s, how, folder, index)
		if err != nil {
			for _, h := range hooks {
				err = errors.Join(err, h.Detach())
			}
			return nil, errors.Join(fmt.Errorf("attach to %s: %w", s.Name, err), os.RemoveAll(folder))
		}
		hooks = append(hooks, h)
	}
	return hooks, nil
}

func attachHook(z *Netns, s Side, how, folder string, index int) (Attachment, error) {
	f := NewFilter(z, s, index, folder)
	if how == "tc" {
		return f, f.attach()
	}
	t, err := attachTCX(z, s, folder, index)
	if errors.Is(err, ebpf.ErrNotSupported) && how == "" {
		return f, f.attach()
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// attachTCX attaches the program of a side and pins it in folder.
func attachTCX(z *Netns, s Side, folder string, index int) (*tcx, error) {
	if err := z.loadFor(s); err != nil {
		return nil, err
	}
	if _, err := z.pinSlow(s, folder); err != nil {
		return nil, err
	}
	l, err := linkTCX(z, link.TCXOptions{Interface: index, Program: s.of(&z.Pair), Attach: s.AttachType, Anchor: s.anchor})
	if err != nil {
		return nil, err
	}
	t := &tcx{pinnedLink: pinnedLink{l, index, filepath.Join(folder, s.Name)}, namespace: z, side: s}
	if err := l.Pin(t.path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return t, nil
}

func linkTCX(z *Netns, o link.TCXOptions) (l link.Link, err error) {
	err = z.Do(func() (err error) {
		l, err = link.AttachTCX(o)
		return err
	})
	return l, err
}

// OpenAttachments opens the attachments that an earlier run pinned in folder, and returns the
// ifindex of their device, or 0 if the device no longer exists. It changes nothing.
func (z *Netns) OpenAttachments(folder string) (found []Attachment, index int, err error) {
	pins, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	if found, index, err = z.openSides(PortSides(), folder, pins); err != nil {
		return nil, 0, err
	}
	x, err := openXDP(z, folder, pins)
	if err != nil {
		return nil, 0, err
	}
	for _, x := range x {
		found, index = append(found, x), max(index, x.index)
	}
	return found, index, nil
}

// openSides opens the pins of tc hooks in a folder.
func (z *Netns) openSides(sides []Side, folder string, pins []os.DirEntry) (found []Attachment, index int, err error) {
	for _, s := range sides {
		for _, entry := range pins {
			var h Attachment
			switch rest, tc := s.CutFilterPin(entry.Name()); {
			case tc:
				f := NewFilter(z, s, 0, folder)
				if f.index, err = strconv.Atoi(rest); err != nil {
					return nil, 0, err
				}
				// If not attached, the device is gone, and another device may have its index.
				if f.found = f.Attached(); f.found {
					index = f.index
				}
				h = f
			case entry.Name() == s.Name:
				var i int
				if h, i, err = openTCX(z, s, filepath.Join(folder, entry.Name())); i != 0 {
					index = i
				}
			default:
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			found = append(found, h)
		}
	}
	return found, index, nil
}

// tcx is a program attached by a tcx link.
type tcx struct {
	pinnedLink
	namespace *Netns
	side      Side
	shadow    link.Link // the shadow program; detached when the process ends
}

func openTCX(z *Netns, s Side, path string) (Attachment, int, error) {
	p, err := openLink(path)
	if err != nil {
		return nil, 0, err
	}
	return &tcx{pinnedLink: p, namespace: z, side: s}, p.index, nil
}

func (t *tcx) AttachShadow() (err error) {
	if t.index == 0 || t.side.unshadowed {
		return nil // the device is gone
	}
	if _, err = t.namespace.shadow.pinSlow(t.side, filepath.Dir(t.path)); err == nil {
		t.shadow, err = linkTCX(t.namespace, link.TCXOptions{
			Interface: t.index, Program: t.side.of(&t.namespace.shadow), Attach: t.side.AttachType, Anchor: link.BeforeLink(t.link),
		})
	}
	return err
}

func (t *tcx) Replace() error {
	if t.index == 0 {
		return nil // the device is gone
	}
	if err := t.namespace.loadFor(t.side); err != nil {
		return err
	}
	if _, err := t.namespace.pinSlow(t.side, filepath.Dir(t.path)); err != nil {
		return err
	}
	return t.update(t.side.of(&t.namespace.Pair))
}

func (t *tcx) Finish() error {
	if t.index == 0 {
		return nil
	}
	if l := t.shadow; l != nil {
		t.shadow = nil
		if err := l.Close(); err != nil {
			return err
		}
	}
	return t.namespace.unpinOtherSlow(t.side, filepath.Dir(t.path))
}

func (t *tcx) Repin() (bool, error) {
	pinned, err := t.pinnedLink.Repin()
	if err != nil || !t.inPlace() {
		return pinned, err
	}
	slow, err := t.namespace.pinSlow(t.side, filepath.Dir(t.path))
	return pinned || slow, err
}

func (t *tcx) isPinned() bool {
	return t.pinnedLink.isPinned() && t.namespace.isSlowPinned(t.side, filepath.Dir(t.path))
}

func (t *tcx) Name() string { return "tcx-" + t.side.Name }

func (t *tcx) Close() {
	if t.shadow != nil {
		t.shadow.Close()
	}
	t.pinnedLink.Close()
}

// AllAttached reports whether the tc programs of the device with an ifindex are all still attached.
// Other programs are ignored.
func AllAttached(attachments []Attachment, index int) bool {
	there := 0
	for _, h := range attachments {
		if _, is := h.(*XDP); is || IsNames(h) {
			continue
		}
		if !h.Attached() {
			return false
		}
		there++
	}
	return there == len(sidesOf(index))
}

// IsPinned reports whether a has its pins.
func IsPinned(a Attachment) bool {
	p, ok := a.(interface{ isPinned() bool })
	return !ok || p.isPinned()
}

// IsSevered reports whether a is a link that is no longer attached: another program detached it, or
// its device is gone. It is false for a filter: the kernel reports the removal of filters.
func IsSevered(a Attachment) bool {
	l, ok := a.(interface{ inPlace() bool })
	return ok && !l.inPlace()
}
