// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// Detach detaches all programs that are pinned in cfg.PinDir, of any layout version, then removes
// the pins, and the folder if it is then empty. A missing object is not an error.
func Detach(cfg datapath.Config, log *slog.Logger) error {
	if !pin.OnBPFFS(cfg.PinDir) {
		return nil
	}
	layouts, err := filepath.Glob(filepath.Join(cfg.PinDir, pin.DirPrefix+"*"))
	if err != nil {
		return err
	}
	for _, layout := range layouts {
		for id, name := range [2]string{Host: "", Switch: cfg.SwitchNamespace} {
			if err := detachNamespace(layout, uint8(id), name, log); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(layout); err != nil {
			return err
		}
		log.Info("pins removed", "dir", layout)
	}
	switch err := os.Remove(cfg.PinDir); {
	case errors.Is(err, unix.ENOTEMPTY):
		log.Warn("the directory of the pins stays: it contains pins of other programs", "dir", cfg.PinDir)
	case errors.Is(err, unix.EBUSY): // a BPF file system is mounted on this folder
	case err != nil:
		return err
	}
	return nil
}

// detachNamespace detaches the programs of all mirrors and ports that are pinned in layout.
func detachNamespace(layout string, id uint8, name string, log *slog.Logger) error {
	folder := filepath.Join(layout, "ports", strconv.Itoa(int(id)))
	ports, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(ports) == 0 && !HasMirrors(layout, id) {
		return nil
	}
	z, err := OpenNetns(id, name)
	if errors.Is(err, datapath.ErrAbsent) {
		z, err = nil, nil // its devices were deleted with it
	}
	if err != nil {
		return err
	}
	if z != nil {
		defer z.Close()
	}
	if err := detachMirrors(z, layout, id); err != nil {
		return fmt.Errorf("detach the programs of mirrors: %w", err)
	}
	for _, port := range ports {
		if err := detachPort(z, filepath.Join(folder, port.Name())); err != nil {
			return fmt.Errorf("detach port %q: %w", pin.PortOf(port.Name()), err)
		}
		log.Info("programs detached", "port", pin.PortOf(port.Name()), "namespace", labels[id])
	}
	return nil
}

// detachPort detaches the programs that are pinned in folder. If the namespace does not exist, its
// devices and their filters do not exist either.
func detachPort(z *Netns, folder string) error {
	pins, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	x, err := openXDP(z, folder, pins)
	if err != nil {
		return err
	}
	for _, x := range x {
		if err := x.Detach(); err != nil {
			return err
		}
	}
	// In the reverse order of attaching.
	for _, s := range slices.Backward(PortSides()) {
		if err := detachSide(z, s, folder, pins); err != nil {
			return err
		}
	}
	if z != nil {
		if err := z.RestoreLocalSources(folder); err != nil {
			return err
		}
	}
	return os.RemoveAll(folder)
}

// detachSide detaches the programs of one side that are pinned in folder; z is as for detachPort.
func detachSide(z *Netns, s Side, folder string, pins []fs.DirEntry) error {
	for _, entry := range pins {
		path := filepath.Join(folder, entry.Name())
		rest, tc := s.CutFilterPin(entry.Name())
		switch {
		case tc && z != nil:
			index, err := strconv.Atoi(rest)
			if err != nil {
				return err
			}
			if err := NewFilter(z, s, index, folder).Detach(); err != nil {
				return err
			}
		case entry.Name() == s.Name:
			l, err := link.LoadPinnedLink(path, nil)
			if err != nil {
				return err
			}
			if err := (&pinnedLink{link: l, path: path}).Detach(); err != nil {
				return err
			}
		}
	}
	return nil
}
