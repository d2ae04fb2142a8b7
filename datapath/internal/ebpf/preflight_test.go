// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// refuse makes the kernel reject the program called name until the test ends.
func refuse(t *testing.T, name string) {
	t.Helper()
	for i := range programs {
		if programs[i].Name != name {
			continue
		}
		load := programs[i].Load
		t.Cleanup(func() { programs[i].Load = load })
		programs[i].Load = func() (*ebpf.CollectionSpec, error) {
			spec, err := load()
			if err != nil {
				return nil, err
			}
			p := spec.Programs[name]
			first := p.Instructions[0].Metadata
			bad := asm.LoadMem(asm.R0, asm.R5, 0, asm.DWord) // R5 is not initialized
			bad.Metadata = first
			p.Instructions[0].Metadata = asm.Metadata{}
			p.Instructions = append(asm.Instructions{bad}, p.Instructions...)
			return spec, nil
		}
	}
}

// TestRefusedProgram: if the kernel rejects a program, the error names the program and the reason,
// and the earlier programs continue.
func TestRefusedProgram(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
	c := n.dial("198.51.100.10:80")
	n.ok(n.d.Close())
	refuse(t, kernel.EgressProgLlTcEgress)
	n.config.Tables.Connections *= 2
	before := n.pins()
	var err error
	n.node.Do(t, func() error {
		var d *DataPlane
		if d, err = Open(n.config, slog.New(slog.DiscardHandler)); err == nil {
			d.Close()
		}
		return nil
	})
	if !errors.Is(err, datapath.ErrRefused) {
		t.Fatalf("error %v, want an error that wraps ErrRefused", err)
	}
	for _, want := range []string{kernel.EgressProgLlTcEgress, kernel.Release(), "R5 !read_ok"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if after := n.pins(); !slices.Equal(before, after) {
		t.Errorf("pins before: %v\nafter: %v", before, after)
	}
	c.echo(t, "by the programs of before")
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Errorf("a new connection by the programs of before: %v", err)
	}

	r, err := Preflight(n.config)
	n.ok(err)
	if r.OK || len(r.Programs) != 20 {
		t.Fatalf("report %+v", r)
	}
	for _, p := range r.Programs {
		if bad := p.Program == kernel.EgressProgLlTcEgress; p.OK == bad ||
			bad != strings.Contains(strings.Join(p.Verifier, "\n"), "R5 !read_ok") {
			t.Errorf("program %+v", p)
		}
	}
	if r.Pins.Action != datapath.PinsConvert || len(r.Pins.Maps) == 0 {
		t.Errorf("pins %+v", r.Pins)
	}
}

// pins returns the names in the folder of the pins.
func (n *network) pins() (names []string) {
	n.t.Helper()
	entries, err := os.ReadDir(n.d.dir)
	n.ok(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestDetachTakesAllOff(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(how.attach)
			n.attach()
			if r, err := Preflight(n.config); err != nil || !r.OK || name == "cls_bpf" && r.Hooks.Use != "tc" {
				t.Errorf("%+v (%v)", r, err)
			}
			n.ok(n.d.Close())
			for range 2 { // the second time nothing is left to detach
				n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.NewTextHandler(t.Output(), nil))) })
				for _, device := range []string{"in0", "out0"} {
					if left := n.hooked(device); len(left) != 0 {
						t.Errorf("left on %s: %s", device, left)
					}
				}
				if _, err := os.Stat(n.config.PinDir); err == nil {
					t.Errorf("%s is left", n.config.PinDir)
				}
			}
		})
	}
}

// TestDetachKeepsOtherPrograms: pins of other programs in the folder, and their qdiscs on the
// devices, stay.
func TestDetachKeepsOtherPrograms(t *testing.T) {
	n := newNetwork(t)
	n.restart("tc")
	n.node.Do(t, func() error {
		dev, err := netlink.LinkByName("in0")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(clsact(dev.Attrs().Index))
	})
	n.attach()
	n.ok(n.d.Close())
	n.ok(os.Mkdir(n.config.PinDir+"/another", 0o700))
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	if left := n.hooked("in0"); !slices.Equal(left, []string{"clsact"}) {
		t.Errorf("on in0: %s, want the clsact that was there", left)
	}
	entries, err := os.ReadDir(n.config.PinDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("in the folder of pins: %v (%v), want the other program's pin", entries, err)
	}
}
