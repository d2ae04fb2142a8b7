// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/fastpath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/watch"
)

// The namespaces, as config_netns in the programs.
const (
	netnsHost   = hook.Host
	netnsSwitch = hook.Switch
)

// namespaces are the network namespaces in which the data plane works, by id. They are safe for
// concurrent use.
type namespaces struct {
	options namespacesOptions

	mu   sync.Mutex
	byID [2]*namespace // the switch's is nil until a port needs it

	devices [2]atomic.Pointer[watch.Devices] // of byID, for readers that must not wait
}

// namespacesOptions are what [namespaces] use.
type namespacesOptions struct {
	// SwitchName is the name of the switch's namespace; "" or "host": the host's.
	SwitchName string
	Pins       string // the folder with the pins of ports, by id
	Programs   [2]hook.Program
	Maps       map[string]*ebpf.Map // which the programs use

	// Watch returns the devices of a namespace, without reading them.
	Watch func(*hook.Netns) *watch.Devices
	// WatchNetfilter begins to follow the netfilter rules of a namespace.
	WatchNetfilter func(*hook.Netns) (*fastpath.Gate, error)
}

func newNamespaces(o namespacesOptions) *namespaces { return &namespaces{options: o} }

// loadUsed loads the programs of the namespaces that an earlier run used, except namespaces that no
// longer exist.
func (s *namespaces) loadUsed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.byID {
		if id != netnsHost && pin.IsEmpty(filepath.Join(s.options.Pins, strconv.Itoa(id))) {
			continue
		}
		if _, err := s.load(uint8(id)); err != nil && !errors.Is(err, datapath.ErrAbsent) {
			return err
		}
	}
	return nil
}

// load opens a namespace and loads its programs, unless already done. s.mu is held.
func (s *namespaces) load(id uint8) (*namespace, error) {
	if s.byID[id] != nil {
		return s.byID[id], nil
	}
	z, err := s.handle(id)
	if err != nil {
		return nil, err
	}
	if err := z.Load(s.options.Programs, s.options.Maps); err != nil {
		return nil, errors.Join(err, z.Close())
	}
	s.byID[id] = &namespace{Netns: z}
	return s.byID[id], nil
}

// handle opens a namespace, which need not be in use. It loads no programs.
func (s *namespaces) handle(id uint8) (*hook.Netns, error) {
	name := ""
	if id == netnsSwitch {
		name = s.options.SwitchName
	}
	return hook.OpenNetns(id, name)
}

// open returns the namespace with id, opening it on first use.
func (s *namespaces) open(id uint8) (*namespace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	z, err := s.load(id)
	if err != nil || z.devices != nil {
		return z, err
	}
	v := s.options.Watch(z.Netns)
	if z.netfilter, err = s.options.WatchNetfilter(z.Netns); err == nil {
		err = v.Start()
	}
	if err != nil {
		s.byID[id] = nil
		return nil, errors.Join(err, z.close())
	}
	z.devices = v
	s.devices[id].Store(v)
	return z, nil
}

// inUse returns the namespaces in use.
func (s *namespaces) inUse() (open []*namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.byID {
		if z != nil {
			open = append(open, z)
		}
	}
	return open
}

// takeDeleted takes the switch's namespace out of use if its name no longer exists or refers to
// another namespace, and returns it; nil: it is current, or not in use. The caller closes it: an
// open handle would keep the old namespace alive.
func (s *namespaces) takeDeleted() *namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	z := s.byID[netnsSwitch]
	if z == nil || z.Current() {
		return nil
	}
	s.byID[netnsSwitch] = nil
	s.devices[netnsSwitch].Store(nil)
	return z
}

// do calls f on a thread in each namespace in use, until f fails.
func (s *namespaces) do(f func() error) error {
	for _, z := range s.inUse() {
		if err := z.Do(f); err != nil {
			return err
		}
	}
	return nil
}

// deviceName returns the name of a device; "": its namespace is not in use. It never waits until a
// namespace is opened.
func (s *namespaces) deviceName(id uint8, index int) string {
	v := s.devices[id].Load()
	if v == nil {
		return ""
	}
	return v.NameOf(index)
}

// idOf returns the id of the switch's namespace, or of the host's.
func (s *namespaces) idOf(inSwitch bool) uint8 {
	if inSwitch && s.apart() {
		return netnsSwitch
	}
	return netnsHost
}

// apart reports whether the switch has a namespace of its own.
func (s *namespaces) apart() bool {
	return s.options.SwitchName != "" && s.options.SwitchName != "host"
}

// close closes all namespaces.
func (s *namespaces) close() (err error) {
	for _, z := range s.inUse() {
		err = errors.Join(err, z.close())
	}
	return err
}

// namespace is a network namespace in which the data plane works.
type namespace struct {
	*hook.Netns
	devices   *watch.Devices
	netfilter *fastpath.Gate
}

// close closes the handles of the namespace; attached programs stay attached.
func (z *namespace) close() error {
	if z.devices != nil {
		z.devices.Close()
	}
	if z.netfilter != nil {
		z.netfilter.Close()
	}
	return z.Netns.Close()
}
