// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func openStore(t *testing.T) *state.Store {
	t.Helper()
	s, _, err := state.Open(state.Config{
		Dir: t.TempDir(), Tables: datapath.DefaultTables(),
		Decode: func(string, []byte) (state.Value, error) { return nil, fmt.Errorf("nothing was stored") },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func objectOf(kind, name string, v state.Value) *state.Object {
	spec, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &state.Object{Key: state.Key{Kind: kind, Name: name}, Owner: "cli", Spec: string(spec), Value: v}
}

func commit(t *testing.T, s *state.Store, put ...*state.Object) {
	t.Helper()
	if _, err := s.Commit(&state.Transaction{Put: put}); err != nil {
		t.Fatal(err)
	}
}

func prefixes(list ...string) (all []netip.Prefix) {
	for _, text := range list {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func device(addresses ...string) datapath.Device {
	d := datapath.Device{Kind: "veth", Addresses: prefixes(addresses...)}
	for _, p := range d.Addresses {
		d.Sources[familyOf(p.Addr())] = p.Addr()
	}
	return d
}

// seenWorld is a node with the devices wan (attached, IPv4 only) and lan, the given devices of the
// host, and the given attached devices of the switch. Host and switch have separate namespaces if
// any devices of the switch are given.
func seenWorld(t *testing.T, host map[string]datapath.Device, inSwitch ...string) *world {
	t.Helper()
	found := [2]map[string]datapath.Device{{
		"lo": {Loopback: true, Addresses: prefixes("127.0.0.1/8")}, "wan": device("198.51.100.7/24"), "lan": device("10.1.0.1/24", "fd01::1/64"),
	}, {}}
	for name, d := range host {
		found[0][name] = d
	}
	o := &Options{
		Store:         openStore(t),
		BackendHealth: func(string, datapath.BackendAddr) health.Result { return health.Result{} },
	}
	attached := map[string][]attachment{}
	attach := func(name string, inSwitch bool) {
		attached[name] = append(attached[name], attachment{
			object: state.Key{Kind: state.KindInterface, Name: name}, inSwitch: inSwitch,
			status: func() (reconcile.Status, bool) { return reconcile.Status{State: reconcile.Done}, true },
		})
	}
	attach("wan", false)
	for _, name := range inSwitch {
		o.HostDevice, o.SwitchDevice, o.SwitchNamespace = "loxi_host", "hs_host", "sw"
		found[1][name] = device()
		attach(name, true)
	}
	noRoute := netip.MustParseAddr("10.66.0.1")
	o.Telemetry = backends.NewFake(backends.FakeOptions{
		Devices: func(inSwitch bool) map[string]datapath.Device { return found[map[bool]int{true: 1}[inSwitch]] },
		Hop: func(h datapath.Hop) datapath.HopState {
			switch a := h.Addr; {
			case a == noRoute:
				return datapath.HopState{Err: errors.New("no route leads to 10.66.0.1")}
			case a == outside[0], a == outside[1]:
				return datapath.HopState{Device: "wan"}
			case found[0]["lan"].Addresses[0].Contains(a):
				return datapath.HopState{Device: "lan"}
			}
			return datapath.HopState{}
		},
	}).Telemetry()
	w := readWorld(o, nil)
	w.devices = attached
	return w
}

func wantCondition(t *testing.T, is condition, ready bool, words []string) {
	t.Helper()
	if is.isMet() != ready || len(words) == 0 && is.message != "" {
		t.Errorf("ready %v, message %q; want ready %v, with %q", is.isMet(), is.message, ready, words)
	}
	for _, word := range words {
		if !strings.Contains(is.message, word) {
			t.Errorf("message %q, want %q in it", is.message, word)
		}
	}
}
