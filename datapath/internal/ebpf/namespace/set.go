// SPDX-License-Identifier: Apache-2.0

// Package namespace holds the network namespaces in which the data plane works: the host's, and the
// switch's if it has one of its own. It opens them, loads their programs and follows their devices
// and netfilter rules. It attaches nothing.
package namespace

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

// Set holds the network namespaces in which the data plane works, by id. It is safe for concurrent
// use.
type Set struct {
	options Options

	mu   sync.Mutex
	byID [2]*Namespace // the switch's is nil until a port needs it

	devices [2]atomic.Pointer[watch.Devices] // of byID, for readers that must not wait
}

// Options are what a [Set] uses.
type Options struct {
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

// New returns the namespaces, of which none is open.
func New(o Options) *Set { return &Set{options: o} }

// LoadUsed loads the programs of the namespaces that an earlier run used, except namespaces that no
// longer exist.
func (s *Set) LoadUsed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.byID {
		if id != hook.Host && pin.IsEmpty(filepath.Join(s.options.Pins, strconv.Itoa(id))) {
			continue
		}
		if _, err := s.load(uint8(id)); err != nil && !errors.Is(err, datapath.ErrAbsent) {
			return err
		}
	}
	return nil
}

// load opens a namespace and loads its programs, unless already done. s.mu is held.
func (s *Set) load(id uint8) (*Namespace, error) {
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
	s.byID[id] = &Namespace{Netns: z}
	return s.byID[id], nil
}

// handle opens a namespace, which need not be in use. It loads no programs.
func (s *Set) handle(id uint8) (*hook.Netns, error) {
	name := ""
	if id == hook.Switch {
		name = s.options.SwitchName
	}
	return hook.OpenNetns(id, name)
}

// Open returns the namespace with id, opening it on first use.
func (s *Set) Open(id uint8) (*Namespace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	z, err := s.load(id)
	if err != nil || z.Devices != nil {
		return z, err
	}
	v := s.options.Watch(z.Netns)
	if z.Netfilter, err = s.options.WatchNetfilter(z.Netns); err == nil {
		err = v.Start()
	}
	if err != nil {
		s.byID[id] = nil
		return nil, errors.Join(err, z.Close())
	}
	z.Devices = v
	s.devices[id].Store(v)
	return z, nil
}

// InUse returns the namespaces in use.
func (s *Set) InUse() (open []*Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.byID {
		if z != nil {
			open = append(open, z)
		}
	}
	return open
}

// LookAtNetfilter makes the gates of the namespaces in use read the netfilter rules soon.
func (s *Set) LookAtNetfilter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.byID {
		if z != nil && z.Netfilter != nil {
			z.Netfilter.Look()
		}
	}
}

// TakeDeleted takes the switch's namespace out of use if its name no longer exists or refers to
// another namespace, and returns it; nil: it is current, or not in use. The caller closes it: an
// open handle would keep the old namespace alive.
func (s *Set) TakeDeleted() *Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	z := s.byID[hook.Switch]
	if z == nil || z.Current() {
		return nil
	}
	s.byID[hook.Switch] = nil
	s.devices[hook.Switch].Store(nil)
	return z
}

// Do calls f on a thread in each namespace in use, until f fails.
func (s *Set) Do(f func() error) error {
	for _, z := range s.InUse() {
		if err := z.Do(f); err != nil {
			return err
		}
	}
	return nil
}

// DeviceName returns the name of a device; "": its namespace is not in use. It never waits until a
// namespace is opened.
func (s *Set) DeviceName(id uint8, index int) string {
	v := s.devices[id].Load()
	if v == nil {
		return ""
	}
	return v.NameOf(index)
}

// IDOf returns the id of the switch's namespace, or of the host's.
func (s *Set) IDOf(inSwitch bool) uint8 {
	if inSwitch && s.apart() {
		return hook.Switch
	}
	return hook.Host
}

// apart reports whether the switch has a namespace of its own.
func (s *Set) apart() bool {
	return s.options.SwitchName != "" && s.options.SwitchName != "host"
}

// Close closes all namespaces.
func (s *Set) Close() (err error) {
	for _, z := range s.InUse() {
		err = errors.Join(err, z.Close())
	}
	return err
}

// Namespace is a network namespace in which the data plane works.
type Namespace struct {
	*hook.Netns
	Devices   *watch.Devices // nil until Open returns it
	Netfilter *fastpath.Gate
}

// Close closes the handles of the namespace; attached programs stay attached.
func (z *Namespace) Close() error {
	if z.Devices != nil {
		z.Devices.Close()
	}
	if z.Netfilter != nil {
		z.Netfilter.Close()
	}
	return z.Netns.Close()
}
