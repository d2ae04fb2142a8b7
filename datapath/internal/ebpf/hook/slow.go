// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// The ingress program calls the program of the slow path through an array of its own, which the
// kernel empties once neither a process nor a pin holds it, although the program still uses it. So
// the folder of each port contains a pin of the array of each ingress program that is attached to
// its device. The name of the pin ends in the id of the array: while programs are replaced, more
// than one is attached.
const slowPrefix = "slow_"

// slowPin returns the path of the pin of p's array in the folder of a port; empty: p has no array,
// as in some tests.
func (p *Pair) slowPin(folder string) (string, error) {
	if p.slow == nil {
		return "", nil
	}
	info, err := p.slow.Info()
	if err != nil {
		return "", fmt.Errorf("map %s: %w", kernel.MapLlSlow, err)
	}
	id, ok := info.ID()
	if !ok {
		return "", fmt.Errorf("map %s: its id is unknown", kernel.MapLlSlow)
	}
	return filepath.Join(folder, fmt.Sprint(slowPrefix, id)), nil
}

// pinSlow pins p's array in the folder of a port, unless done already, and reports whether it did.
// Only the ingress program of p uses it.
func (p *Pair) pinSlow(s Side, folder string) (bool, error) {
	path, err := p.slowPin(folder)
	if err != nil || path == "" || !s.isIngress() {
		return false, err
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	clone, err := p.slow.Clone()
	if err != nil {
		return false, err
	}
	if err := errors.Join(clone.Pin(path), clone.Close()); err != nil {
		return false, fmt.Errorf("pin the program of the slow path: %w", err)
	}
	return true, nil
}

// isSlowPinned reports whether p's array is pinned in the folder of a port, if a program on this
// side needs it.
func (p *Pair) isSlowPinned(s Side, folder string) bool {
	path, err := p.slowPin(folder)
	if err != nil || path == "" || !s.isIngress() {
		return true
	}
	_, err = os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// unpinOtherSlow removes the pins of the arrays of other programs from the folder of a port. They
// must be detached, and must not be running.
func (p *Pair) unpinOtherSlow(s Side, folder string) error {
	keep, err := p.slowPin(folder)
	if err != nil || !s.isIngress() {
		return err
	}
	pins, err := os.ReadDir(folder)
	for _, entry := range pins {
		if path := filepath.Join(folder, entry.Name()); strings.HasPrefix(entry.Name(), slowPrefix) && path != keep {
			err = errors.Join(err, pin.Remove(path))
		}
	}
	return err
}
