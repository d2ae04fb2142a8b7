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
)

// hook is one program on one hook of one device.
type hook interface {
	name() string // such as tcx-ingress
	program() ebpf.ProgramID
	attached() bool
	// precede attaches this run's program as a shadow program before an earlier run's. replace
	// atomically replaces the earlier run's program. settle does the remaining work and removes the
	// shadow program.
	precede() error
	replace() error
	settle() error
	// mend restores the pin of an attached program if it is missing, and reports whether it did.
	mend() (bool, error)
	// detach detaches the program and removes its pins.
	detach() error
	// moved records that the pins have moved to another folder.
	moved(folder string)
	// close closes the handle; the program stays attached.
	close()
}

// side is one of the two hooks of a device.
type side struct {
	name   string
	attach ebpf.AttachType
	parent uint32
	of     func(*pair) *ebpf.Program
}

var sides = []side{
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, func(p *pair) *ebpf.Program { return p.egress }},
	// Last: processing begins once ingress is attached, so egress must be ready.
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, func(p *pair) *ebpf.Program { return p.ingress }},
}

// sidesOf returns the hooks of a device to which programs are attached: only egress on the loopback
// device.
func sidesOf(index int) []side {
	if index == loopbackIndex {
		return sides[:1]
	}
	return sides
}

// attachHooks attaches the programs to the device and pins them in folder.
func attachHooks(z *namespace, how, folder string, index int) ([]hook, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	var hooks []hook
	for _, s := range sidesOf(index) {
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

func attachHook(z *namespace, s side, how, folder string, index int) (hook, error) {
	f := &filter{namespace: z, side: s, index: index, folder: folder}
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
func attachTCX(z *namespace, s side, folder string, index int) (*tcx, error) {
	l, err := linkTCX(z, link.TCXOptions{Interface: index, Program: s.of(&z.pair), Attach: s.attach})
	if err != nil {
		return nil, err
	}
	t := &tcx{pinnedLink: pinnedLink{l, index, filepath.Join(folder, s.name)}, namespace: z, side: s}
	if err := l.Pin(t.pin); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return t, nil
}

func linkTCX(z *namespace, o link.TCXOptions) (l link.Link, err error) {
	err = z.do(func() (err error) {
		l, err = link.AttachTCX(o)
		return err
	})
	return l, err
}

// openHooks opens the hooks that are pinned in folder, to which an earlier run attached its
// programs.
func openHooks(z *namespace, folder string) (hooks []hook, index int, err error) {
	pins, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	for _, s := range sides {
		for _, entry := range pins {
			var h hook
			switch rest, tc := strings.CutPrefix(entry.Name(), "tc_"+s.name+"_"); {
			case tc:
				f := &filter{namespace: z, side: s, folder: folder}
				if f.index, err = strconv.Atoi(rest); err != nil {
					return nil, 0, err
				}
				// If not attached, the device is gone, and another device may have its index.
				if f.found = f.attached(); f.found {
					index = f.index
				}
				h = f
			case entry.Name() == s.name:
				h, index, err = openTCX(z, s, filepath.Join(folder, entry.Name()))
			default:
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			hooks = append(hooks, h)
		}
	}
	x, err := openXDP(z, folder, pins)
	if err != nil {
		return nil, 0, err
	}
	for _, x := range x {
		hooks, index = append(hooks, x), max(index, x.index)
	}
	return hooks, index, nil
}

// tcx is a program attached by a tcx link.
type tcx struct {
	pinnedLink
	namespace *namespace
	side      side
	first     link.Link // the shadow program; detached when the process ends
}

func openTCX(z *namespace, s side, pin string) (hook, int, error) {
	p, err := openLink(pin)
	if err != nil {
		return nil, 0, err
	}
	return &tcx{pinnedLink: p, namespace: z, side: s}, p.index, nil
}

func (t *tcx) precede() (err error) {
	if t.index != 0 { // else the device is gone
		t.first, err = linkTCX(t.namespace, link.TCXOptions{
			Interface: t.index, Program: t.side.of(&t.namespace.first), Attach: t.side.attach, Anchor: link.BeforeLink(t.link),
		})
	}
	return err
}

func (t *tcx) replace() error { return t.update(t.side.of(&t.namespace.pair)) }

func (t *tcx) settle() error {
	if t.first == nil {
		return nil
	}
	l := t.first
	t.first = nil
	return l.Close()
}

func (t *tcx) name() string { return "tcx-" + t.side.name }

func (t *tcx) close() {
	if t.first != nil {
		t.first.Close()
	}
	t.pinnedLink.close()
}

// mend restores pins that another program removed, so that no hook has to be detached. p.mu is
// held.
func (p *ports) mend(z *namespace, t *port, folder string) error {
	if k := p.d.keeper; k != nil {
		return k.mend(t, folder)
	}
	err := os.MkdirAll(folder, 0o700)
	for _, h := range t.hooks {
		_, e := h.mend()
		err = errors.Join(err, e)
	}
	return err
}

// attached reports whether both tc programs are still attached.
func (z *namespace) attached(t *port) bool {
	there := 0
	for _, h := range t.hooks {
		if _, is := h.(*xdp); is {
			continue
		}
		if !h.attached() {
			return false
		}
		there++
	}
	return there == len(sidesOf(t.ifindex))
}
