// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// recordedPorts records the ports of tunnels. In each netns the index of a device is 10 more than
// the number of letters of its name.
type recordedPorts struct {
	fakeNetns
	log     []string
	during  func()                       // nil, or called during every operation
	holders map[string]datapath.PortName // by "inSwitch ifindex"
}

func (r *recordedPorts) called() {
	if r.during != nil {
		r.during()
	}
}

func (r *recordedPorts) LinkByName(name string) (netlink.Link, error) {
	if name == "" {
		return nil, netlink.LinkNotFoundError{}
	}
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: 10 + len(name)}}, nil
}

func (r *recordedPorts) Update(_ context.Context, name datapath.PortName, value datapath.Port) error {
	r.called()
	r.log = append(r.log, fmt.Sprintf("attach %q to %s (switch: %t)", name, value.Device, value.Switch))
	r.holders[fmt.Sprint(value.Switch, 10+len(value.Device))] = name
	return nil
}

func (r *recordedPorts) Delete(_ context.Context, name datapath.PortName) error {
	r.called()
	for at, holder := range r.holders {
		if holder == name {
			r.log = append(r.log, fmt.Sprintf("detach %q", name))
			delete(r.holders, at)
		}
	}
	return nil
}

func (r *recordedPorts) Verify(_ context.Context, name datapath.PortName) (bool, error) {
	r.called()
	for _, holder := range r.holders {
		if holder == name {
			return true, nil
		}
	}
	return false, nil
}

func (r *recordedPorts) Need(inner datapath.PortName, inSwitch bool, ifindex int) {
	r.called()
	r.log = append(r.log, fmt.Sprintf("need %q: device %d (switch: %t)", inner, ifindex, inSwitch))
}

func (r *recordedPorts) Unneed(inner datapath.PortName) {
	r.called()
	r.log = append(r.log, fmt.Sprintf("unneed %q", inner))
}

func (r *recordedPorts) Holder(inSwitch bool, ifindex int) datapath.PortName {
	r.called()
	return r.holders[fmt.Sprint(inSwitch, ifindex)]
}

// TestTunnelPorts: a tunnel needs the programs on both ends of its device, and on both ends of the
// link between host and switch, unless an Interface has them there.
func TestTunnelPorts(t *testing.T) {
	spec := datapath.Tunnel{Type: datapath.TunnelVXLAN, Device: "hs0", Port: 4789, VNI: 7}
	own := []string{`attach "tunnel mesh" to hs0 (switch: true)`, `attach "tunnel mesh end" to hs0` + datapath.TunnelEndSuffix + ` (switch: true)`}
	gone := []string{`detach "tunnel mesh"`, `detach "tunnel mesh end"`}
	for _, tt := range []struct {
		name       string
		options    Options
		held       string // by an Interface
		want, left []string
	}{
		{"in the host's netns", Options{}, "", own, append([]string{`unneed "tunnel link "`, `unneed "tunnel link "`}, gone...)},
		{"in a netns of its own", Options{SwitchNetns: 1, HostDevice: "host0", SwitchDevice: "switch0"}, "", append(slices.Clone(own),
			`need "tunnel link host0": device 15 (switch: false)`, `attach "tunnel link host0" to host0 (switch: false)`,
			`need "tunnel link switch0": device 17 (switch: true)`, `attach "tunnel link switch0" to switch0 (switch: true)`),
			slices.Concat([]string{`unneed "tunnel link host0"`, `unneed "tunnel link switch0"`}, gone, []string{`detach "tunnel link host0"`, `detach "tunnel link switch0"`})},
		{"with an Interface on the link", Options{SwitchNetns: 1, HostDevice: "host0", SwitchDevice: "switch0"}, "false 15", append(slices.Clone(own),
			`need "tunnel link host0": device 15 (switch: false)`,
			`need "tunnel link switch0": device 17 (switch: true)`, `attach "tunnel link switch0" to switch0 (switch: true)`),
			slices.Concat([]string{`unneed "tunnel link host0"`, `unneed "tunnel link switch0"`}, gone, []string{`detach "tunnel link switch0"`})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recordedPorts{holders: map[string]datapath.PortName{}}
			if tt.held != "" {
				r.holders[tt.held] = "uplink"
			}
			tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{})
			options := tt.options
			options.Tables, options.Ports = tables, r
			options.Netns = func(bool) (Netns, error) { return r, nil }
			o, err := Adopt(options)
			if err != nil {
				t.Fatal(err)
			}
			tunnels := o.Tunnels()
			if err := tunnels.Update(t.Context(), "mesh", spec); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.log, tt.want) {
				t.Errorf("%q\nwant %q", r.log, tt.want)
			}
			if ok, err := tunnels.Verify(t.Context(), "mesh"); !ok || err != nil {
				t.Errorf("verifies: %t, %v", ok, err)
			}
			if !o.HasDevice(options.SwitchNetns, "hs0") || o.HasDevice(options.SwitchNetns^1, "hs0") {
				t.Error("the device of the tunnel is not known, or in both netns")
			}
			r.log = nil
			if err := tunnels.Delete(t.Context(), "mesh"); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.log, tt.left) {
				t.Errorf("%q\nwant %q", r.log, tt.left)
			}
			if found, err := tables.TunnelName.Find(1, &kernel.PeerName{}); found || err != nil || o.HasDevice(options.SwitchNetns, "hs0") {
				t.Errorf("a deleted tunnel stays: %t, %v", found, err)
			}
		})
	}
}

// TestPassDuringPorts: a port may wait for a pass over the connections, which asks for the next hops of
// the peers; so no operation of a tunnel may keep that question waiting while it waits for a port.
func TestPassDuringPorts(t *testing.T) {
	tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{})
	r := &recordedPorts{holders: map[string]datapath.PortName{}}
	o, err := Adopt(Options{
		Tables: tables, Ports: r, Netns: func(bool) (Netns, error) { return r, nil },
		SwitchNetns: 1, HostDevice: "host0", SwitchDevice: "switch0",
	})
	if err != nil {
		t.Fatal(err)
	}
	const index, hop = 3, 7
	o.useIndex(index, true)
	if err := tables.PeerNexthop.Put(index, uint32(hop)); err != nil {
		t.Fatal(err)
	}
	calls := 0
	r.during = func() {
		calls++
		answer := make(chan map[uint32]bool, 1)
		go func() { answer <- o.Nexthops() }()
		select {
		case hops := <-answer:
			if !hops[hop] {
				t.Errorf("next hops %v, want %d among them", hops, hop)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the next hops of the peers cannot be read during an operation on a port")
		}
	}
	spec := datapath.Tunnel{Type: datapath.TunnelVXLAN, Device: "hs0", Port: 4789, VNI: 7}
	tunnels := o.Tunnels()
	if err := tunnels.Update(t.Context(), "mesh", spec); err != nil {
		t.Fatal(err)
	}
	if ok, err := tunnels.Verify(t.Context(), "mesh"); !ok || err != nil {
		t.Errorf("verifies: %t, %v", ok, err)
	}
	if err := tunnels.Delete(t.Context(), "mesh"); err != nil {
		t.Fatal(err)
	}
	if calls < 10 {
		t.Errorf("%d calls of ports", calls)
	}
}

// TestNoLink: a tunnel in a netns of its own is refused if no link to the host exists.
func TestNoLink(t *testing.T) {
	r := &recordedPorts{holders: map[string]datapath.PortName{}}
	tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{})
	o, err := Adopt(Options{Tables: tables, Ports: r, SwitchNetns: 1, Netns: func(bool) (Netns, error) { return r, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Tunnels().Update(t.Context(), "mesh", datapath.Tunnel{Device: "hs0"}); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}
