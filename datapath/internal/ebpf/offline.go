// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"log/slog"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/inspect"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// Attached reports whether an earlier run left programs attached.
func Attached(pinDir string) bool { return pin.Attached(pinDir) }

// Preflight loads the programs of both namespaces with maps of its own, attaches them in a
// namespace of its own, and inspects the pins. It leaves nothing behind. An error means that it
// could not run.
func Preflight(cfg datapath.Config) (datapath.Preflight, error) {
	r, err := hook.Preflight(programs, cfg.Attach)
	if err != nil {
		return r, err
	}
	spec, err := loadMapSpecs()
	if err != nil {
		return r, err
	}
	pins, err := pin.Preflight(cfg, spec.Maps)
	if err != nil {
		return r, err
	}
	r.Pins = pins.PreflightPins
	r.OK = r.OK && r.Pins.OK
	return r, nil
}

// Detach detaches all programs that are pinned in cfg.PinDir, of any layout version, then removes
// the pins, and the folder if it is then empty. A missing object is not an error.
func Detach(cfg datapath.Config, log *slog.Logger) error { return hook.Detach(cfg, log) }

// Inspect returns our pins and attached programs, and other programs on the hooks of the same
// devices, and changes nothing. Parts that could not be read are in Unseen.
func Inspect(o datapath.InspectOptions) (*datapath.Inspection, error) {
	return inspect.Read(o, device.Inspect)
}
