// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

// maxPeek is the size, in bytes, up to which a store is copied for inspection.
const maxPeek = 1 << 30

// Peeked is the content of a store that no daemon has open.
type Peeked struct {
	Revision uint64
	Objects  []*Object
	Report
	// Damaged is the damage that would make the next start set the store aside.
	Damaged error
}

// Peek reads the store in dir, which no daemon is using, without changing anything. It reads a
// copy, so that a daemon can start in the meantime. The error wraps [os.ErrNotExist] if no store
// exists.
func Peek(dir string, decode func(kind string, spec []byte) (Value, error)) (p *Peeked, err error) {
	tmp, err := os.MkdirTemp("", "loxilight-state-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	path := filepath.Join(tmp, fileName)
	if err := copyStore(path, filepath.Join(dir, fileName)); err != nil {
		return nil, err
	}
	f, c, err := openFile(path, decode)
	if errors.Is(err, disk.ErrDamaged) {
		return &Peeked{Damaged: err}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("copy of the store: %w", err)
	}
	p = &Peeked{
		Revision: c.Revision, Objects: slices.DeleteFunc(c.objects, (*Object).isOpaque),
		Report: Report{Damage: c.damage, RolledBack: c.rolledBack, Unreadable: c.unreadable},
	}
	return p, f.Close()
}

func copyStore(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // it was only read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPeek {
		return fmt.Errorf("%s: no file of at most %d bytes", from, maxPeek)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
