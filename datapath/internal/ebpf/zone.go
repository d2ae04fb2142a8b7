// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// The namespaces, as config_netns in the programs.
const (
	netnsHost   = 0
	netnsSwitch = 1
)

// namespace is a network namespace in which the data plane works. Each connection, device and next
// hop belongs to one namespace.
type namespace struct {
	id   uint8
	name string
	ns   netns.NsHandle
	own  bool // the namespace of the daemon itself
	nl   *netlink.Handle
	pair
	first     pair // loaded while this run's programs replace an earlier run's; see takeover.go
	maps      map[string]*ebpf.Map
	devices   *devices
	netfilter *netfilterWatch
}

// pair holds the programs of both hooks.
type pair struct{ ingress, egress *ebpf.Program }

func (p *pair) Close() (err error) {
	for _, x := range []*ebpf.Program{p.ingress, p.egress} {
		if x != nil {
			err = errors.Join(err, x.Close())
		}
	}
	return err
}

// openNamespace opens the namespace with this name, or the daemon's own if name is empty. The error
// wraps [datapath.ErrAbsent] if the namespace does not exist.
func openNamespace(id uint8, name string) (_ *namespace, err error) {
	z := &namespace{id: id, name: name, own: name == "", ns: -1}
	if z.own {
		z.ns, err = netns.Get()
	} else {
		z.ns, err = netns.GetFromName(name)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("network namespace %q (switch.namespace): %w", name, datapath.ErrAbsent)
		}
	}
	if err != nil {
		return nil, err
	}
	if z.nl, err = netlink.NewHandleAt(z.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink: %w", err), z.ns.Close())
	}
	return z, nil
}

// current reports whether the name still refers to this namespace, which may have been deleted and
// created again.
func (z *namespace) current() bool {
	if z.own {
		return true
	}
	named, err := netns.GetFromName(z.name)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EINVAL)
	}
	defer named.Close()
	return named.Equal(z.ns)
}

// renewSwitch closes the switch's namespace if its name no longer exists or refers to another
// namespace: an open handle would keep the old namespace alive. The programs are attached again
// when a new namespace exists.
func (d *DataPlane) renewSwitch() error {
	// Locked so that no operation on ports uses the namespace after it is closed.
	d.ports.mu.Lock()
	defer d.ports.mu.Unlock()
	d.namespacesMu.Lock()
	z := d.namespaces[netnsSwitch]
	if z == nil || z.current() {
		d.namespacesMu.Unlock()
		return nil
	}
	d.namespaces[netnsSwitch] = nil
	d.namespacesMu.Unlock()
	d.log.Warn("the network namespace of the switch was deleted", slog.String("namespace", z.name))
	err := errors.Join(d.ports.abandon(netnsSwitch), z.Close())
	if z.devices != nil {
		err = errors.Join(err, z.devices.forget())
	}
	d.signal()
	return err
}

func (z *namespace) Close() error {
	if z.devices != nil {
		z.devices.Close()
	}
	if z.netfilter != nil {
		z.netfilter.Close()
	}
	err := errors.Join(z.pair.Close(), z.first.Close())
	z.nl.Close()
	return errors.Join(err, z.ns.Close())
}

// label returns the name of the namespace in the API.
func (z *namespace) label() string {
	return [...]string{netnsHost: "host", netnsSwitch: "switch"}[z.id]
}

// do calls f on a thread that is in the namespace.
func (z *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread is in the wrong namespace, so it must end with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(z.ns), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// load loads the programs of the namespace with these maps.
func (z *namespace) load(maps map[string]*ebpf.Map) error {
	z.maps = maps
	return z.pair.load(z.id, false, maps)
}

// loadFirst loads the programs that run before an earlier run's.
func (z *namespace) loadFirst(maps map[string]*ebpf.Map) error {
	if z.first.ingress != nil {
		return nil
	}
	return z.first.load(z.id, true, maps)
}

// load loads both programs in parallel, since the kernel verifies each for about a second.
func (p *pair) load(id uint8, first bool, maps map[string]*ebpf.Map) error {
	var both sync.WaitGroup
	var errs [2]error
	for i, to := range []**ebpf.Program{&p.ingress, &p.egress} {
		both.Go(func() {
			x, err := loadProgram(copyOf{programs[i].load, programs[i].name, id, first}, maps, 0)
			if err != nil {
				errs[i] = refusedProgram(programs[i].name, id, err)
			}
			*to = x
		})
	}
	both.Wait()
	return cmp.Or(errs[0], errs[1])
}

// copyOf identifies a program and its constants.
type copyOf struct {
	load      func() (*ebpf.CollectionSpec, error)
	name      string
	namespace uint8
	first     bool // config_shadow
}

// loadProgram loads a program, or reuses an earlier run's identical one. A non-zero log level
// requests the verifier's log, so the program is always loaded.
func loadProgram(p copyOf, maps map[string]*ebpf.Map, log ebpf.LogLevel) (*ebpf.Program, error) {
	s, err := p.load()
	if err != nil {
		return nil, err
	}
	if err := s.Variables[kernel.VarConfigNetns].Set(p.namespace); err != nil {
		return nil, err
	}
	if p.first {
		if err := s.Variables[kernel.VarConfigShadow].Set(uint8(1)); err != nil {
			return nil, err
		}
	}
	replace := make(map[string]*ebpf.Map)
	if err := s.Variables[kernel.VarConfigBuild].Set(buildOf(s.Programs[p.name])); err != nil {
		return nil, err
	}
	for n, m := range s.Maps {
		m.Pinning = ebpf.PinNone
		if shared := maps[n]; shared != nil {
			replace[n] = shared
			m.MaxEntries = shared.MaxEntries()
		}
	}
	if log == 0 {
		if running := runningProgram(s, p.name, replace); running != nil {
			return running, nil
		}
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{
		MapReplacements: replace, Programs: ebpf.ProgramOptions{LogLevel: log},
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.DetachProgram(p.name), nil
}

// namespaceOf returns the id of the switch's namespace, or of the host's.
func (d *DataPlane) namespaceOf(inSwitch bool) uint8 {
	if inSwitch && d.config.SwitchNamespace != "" && d.config.SwitchNamespace != "host" {
		return netnsSwitch
	}
	return netnsHost
}
