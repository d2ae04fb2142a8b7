// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// Notes returns the names of the notes that a folder of pins may contain. A note is a pin whose
// existence records what must be undone when the programs are detached.
func Notes() []string { return []string{qdiscNote, ownSettings[0].name, ownSettings[1].name} }

// PinNote creates a note at path. Any object could be pinned: it is the egress program, which must
// be loaded.
func (z *Netns) PinNote(path string) error { return pinClone(z.Egress, path) }

// pinClone pins a clone of program at path, replacing an existing pin. The program itself can still
// be pinned elsewhere.
func pinClone(program *ebpf.Program, path string) error {
	if err := pin.Remove(path); err != nil {
		return err
	}
	clone, err := program.Clone()
	if err != nil {
		return err
	}
	return errors.Join(clone.Pin(path), clone.Close())
}
