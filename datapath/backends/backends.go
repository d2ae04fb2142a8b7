// SPDX-License-Identifier: Apache-2.0

// Package backends is the only package that knows which data planes exist.
package backends

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf"
	"github.com/loxilight/loxilight/datapath/internal/fake"
	"github.com/loxilight/loxilight/datapath/internal/network"
	"github.com/loxilight/loxilight/datapath/internal/pod"
)

// Names of the data planes.
const (
	EBPF = "ebpf"
	Fake = "fake" // forwards nothing
)

// Open opens the data plane called name. A data plane that an earlier run of the daemon set up is
// adopted, and forwards packets in the meantime. A missing permission, for example in a container,
// is permanent: the error wraps [datapath.ErrRefused].
func Open(name string, cfg datapath.Config, log *slog.Logger) (datapath.DataPlane, error) {
	switch name {
	case EBPF:
		if err := checkPrivileges(); err != nil {
			return nil, fmt.Errorf("data plane %s: %w (%w)", name, err, datapath.ErrRefused)
		}
		d, err := ebpf.Open(cfg, log)
		if errors.Is(err, fs.ErrPermission) && !errors.Is(err, datapath.ErrRefused) {
			err = fmt.Errorf("%w (%w)", err, datapath.ErrRefused)
		}
		if err != nil {
			return nil, fmt.Errorf("data plane %s: %w", name, err)
		}
		return d, nil
	case Fake:
		log.Warn("the data plane is a fake: nothing will be forwarded")
		return fake.New(fake.Options{Tables: cfg.Tables}), nil
	default:
		return nil, fmt.Errorf("data plane %s: unknown name", name)
	}
}

// OpenNetwork opens the kernel's own forwarding for the data plane called name. It returns nil if
// the data plane does not use that forwarding, so that bridges and routes are not supported.
func OpenNetwork(name string, cfg datapath.Config, log *slog.Logger) (datapath.Network, error) {
	switch name {
	case Fake:
		return fake.NewNetwork(fake.Options{}), nil
	case EBPF:
		n, err := network.Open(cfg, log)
		if err != nil {
			return nil, fmt.Errorf("network of data plane %s: %w", name, err)
		}
		return n, nil
	default:
		return nil, fmt.Errorf("network of data plane %s: unknown name", name)
	}
}

// OpenPods opens the [datapath.PodLinks] that the data plane called name uses.
func OpenPods(name string, cfg datapath.Config, log *slog.Logger) (datapath.PodLinks, error) {
	switch name {
	case Fake:
		return fake.NewPodLinks(fake.Options{}), nil
	case EBPF:
		return pod.Open(cfg, log)
	default:
		return nil, fmt.Errorf("links of pods of data plane %s: unknown name", name)
	}
}

// MakeSwitch creates the network namespace of the switch if it does not exist.
func MakeSwitch(cfg datapath.Config) error { return network.MakeSwitch(cfg) }

// WithSwitch wraps plane so that a port in the network namespace of the switch creates that
// namespace, if n supports that.
func WithSwitch(plane datapath.DataPlane, n datapath.Network) datapath.DataPlane {
	if maker, ok := n.(switchMaker); ok {
		return &switched{DataPlane: plane, ports: switchedPorts{plane.Ports(), maker}}
	}
	return plane
}

type switchMaker interface {
	NeedSwitch(port string) error
	ForgetSwitch(port string)
}

// switched is a data plane whose ports need the switch.
type switched struct {
	datapath.DataPlane
	ports switchedPorts
}

func (s *switched) Ports() datapath.Table[datapath.PortName, datapath.Port] { return s.ports }

type switchedPorts struct {
	datapath.Table[datapath.PortName, datapath.Port]
	maker switchMaker
}

func (s switchedPorts) Update(ctx context.Context, name datapath.PortName, p datapath.Port) error {
	if !p.Switch {
		s.maker.ForgetSwitch(string(name))
	} else if err := s.maker.NeedSwitch(string(name)); err != nil {
		return err
	}
	return s.Table.Update(ctx, name, p)
}

func (s switchedPorts) Delete(ctx context.Context, name datapath.PortName) error {
	s.maker.ForgetSwitch(string(name))
	return s.Table.Delete(ctx, name)
}

// Preflight predicts whether the data plane called name would start on this kernel, without
// changing anything. An error means that the check itself failed.
func Preflight(name string, cfg datapath.Config) (datapath.Preflight, error) {
	switch name {
	case EBPF:
		if err := checkPrivileges(); err != nil {
			return datapath.Preflight{}, fmt.Errorf("data plane %s: %w", name, err)
		}
		r, err := ebpf.Preflight(cfg)
		if err != nil {
			return r, fmt.Errorf("data plane %s: %w", name, err)
		}
		return r, nil
	case Fake:
		return datapath.Preflight{OK: true, Hooks: datapath.PreflightHooks{OK: true}, Pins: datapath.PreflightPins{OK: true, Action: datapath.PinsNone}}, nil
	default:
		return datapath.Preflight{}, fmt.Errorf("data plane %s: unknown name", name)
	}
}

// Inspect reports the kernel state of the data plane called name and of other programs, without
// changing anything.
func Inspect(name string, o datapath.InspectOptions) (*datapath.Inspection, error) {
	switch name {
	case EBPF:
		if err := checkPrivileges(); err != nil {
			return nil, fmt.Errorf("data plane %s: %w", name, err)
		}
		i, err := ebpf.Inspect(o)
		if err != nil {
			return nil, fmt.Errorf("data plane %s: %w", name, err)
		}
		return i, nil
	case Fake:
		return &datapath.Inspection{}, nil
	default:
		return nil, fmt.Errorf("data plane %s: unknown name", name)
	}
}

// Attached reports whether an earlier run of the daemon left the data plane called name attached.
func Attached(name, pinDir string) bool { return name == EBPF && ebpf.Attached(pinDir) }

// Detach removes the kernel state of the data plane called name, which then no longer forwards
// anything. The data plane must not be open. If nothing is pinned, Detach does nothing and needs no
// privileges.
func Detach(name string, cfg datapath.Config, log *slog.Logger) error {
	switch name {
	case EBPF:
		_, err := os.Stat(cfg.PinDir)
		pinned := !errors.Is(err, fs.ErrNotExist)
		if !pinned && !network.Present(cfg) {
			return nil
		}
		if err := checkPrivileges(); err != nil {
			return fmt.Errorf("data plane %s: %w", name, err)
		}
		if pinned {
			if err := ebpf.Detach(cfg, log); err != nil {
				return fmt.Errorf("data plane %s: %w", name, err)
			}
		}
		if err := network.Detach(cfg, log); err != nil {
			return fmt.Errorf("network of data plane %s: %w", name, err)
		}
		return nil
	case Fake:
		return nil
	default:
		return fmt.Errorf("data plane %s: unknown name", name)
	}
}

// FakePlane, FakeNetwork, FakePods and FakeOptions are the fakes for other packages' tests.
type (
	FakePlane   = fake.DataPlane
	FakeNetwork = fake.Network
	FakeOptions = fake.Options
	FakePods    = fake.PodLinks
)

// NewFake returns a fake that fails as configured in o.
func NewFake(o FakeOptions) *FakePlane { return fake.New(o) }

// NewFakeNetwork returns a fake network that fails as configured in o.
func NewFakeNetwork(o FakeOptions) *FakeNetwork { return fake.NewNetwork(o) }

// NewFakePods returns pod links that fail as configured in o.
func NewFakePods(o FakeOptions) *FakePods { return fake.NewPodLinks(o) }
