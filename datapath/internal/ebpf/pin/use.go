// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// UsePolicies is the use of the pins for network policies.
const UsePolicies = "policies"

// uses are uses of the pins that this version supports, but older versions do not: those would let
// packets pass that are dropped. While the pins have such a use, a directory of its name contains a
// pin. An older version reports it as a different layout, does not start, and leaves the programs in
// the kernel as they are.
var uses = []string{UsePolicies}

func useDir(pinDir, use string) string { return fmt.Sprint(Dir(pinDir), "+", use) }

// IsUse reports whether a directory records a use of the pins that this version supports.
func IsUse(pinDir, dir string) bool {
	return slices.ContainsFunc(uses, func(use string) bool { return dir == useDir(pinDir, use) })
}

// SetUse records whether the pins in pinDir have a use.
func SetUse(pinDir, use string, on bool) error {
	dir := useDir(pinDir, use)
	if !on {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the directory that prevents older versions from starting: %w", err)
		}
		return nil
	}
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil && IsEmpty(dir) {
		err = pinOrigin(pinDir, dir)
	}
	if err != nil {
		return fmt.Errorf("prevent older versions from starting: %w", err)
	}
	return nil
}

// pinOrigin pins the origin of the maps in another directory, so that older versions name it.
func pinOrigin(pinDir, dir string) error {
	m, err := OpenOrigin(Dir(pinDir))
	if err != nil {
		m, err = ebpf.NewMap(&ebpf.MapSpec{Name: OriginName, Type: ebpf.Array, KeySize: 4, ValueSize: originSize, MaxEntries: 1})
	}
	if err != nil {
		return err
	}
	defer m.Close()
	c, err := m.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Pin(filepath.Join(dir, OriginName))
}
