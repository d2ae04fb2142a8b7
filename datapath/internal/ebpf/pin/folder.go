// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

var escapes = strings.NewReplacer("%", "%25", ".", "%2e", "/", "%2f")

// FolderOf returns the name of a port's folder: the port's name, escaped for a BPF file system,
// which does not allow dots.
func FolderOf(name datapath.PortName) string { return escapes.Replace(string(name)) }

// PortOf returns the port whose folder has this name.
func PortOf(folder string) datapath.PortName {
	return datapath.PortName(strings.NewReplacer("%25", "%", "%2e", ".", "%2f", "/").Replace(folder))
}

// PrepareDir creates dir on a BPF file system, and mounts one if necessary.
func PrepareDir(dir string) error {
	const root = "/sys/fs/bpf"
	parent := dir
	for {
		var st unix.Statfs_t
		err := unix.Statfs(parent, &st)
		if err == nil && st.Type == unix.BPF_FS_MAGIC {
			return os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			break
		}
		parent = filepath.Dir(parent)
	}
	target := dir
	if rel, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(rel) {
		target = root
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", target, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system on %s for pinDir %s: %w", target, dir, err)
	}
	return os.MkdirAll(dir, 0o700)
}
