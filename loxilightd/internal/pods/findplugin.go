// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/loxilight/loxilight/api"
)

// findPlugin returns the file that contains an IPAM plugin. The plugin runs with the daemon's
// capabilities, so it must be in a directory that the daemon's configuration names, whatever the
// caller's CNI_PATH contains, and only root may be able to write to it.
func (s *Server) findPlugin(name string) (string, *api.Error) {
	for _, dir := range s.Plugins {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(s.checkFolders(dir), s.checkPlugin(path))
		}
		if err != nil {
			return "", badConfig("ipam.type", "plugin %q is not run: %v", name, err)
		}
		return path, nil
	}
	return "", badConfig("ipam.type",
		"there is no plugin %q in %s (cni.ipamPlugins of loxilightd.yaml; CNI_PATH is not used for IPAM plugins)", name, strings.Join(s.Plugins, ", "))
}

// checkPlugin rejects a file that a user other than root could have written or replaced. path
// contains no symbolic links.
func (s *Server) checkPlugin(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", path)
	}
	if err := s.onlyRoot(path, info); err != nil {
		return err
	}
	return s.checkFolders(filepath.Dir(path))
}

// checkFolders is like checkPlugin, but checks a directory and its parents. A parent may be
// writable for other users if it has the sticky bit: they cannot replace root's files there.
func (s *Server) checkFolders(dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if at == dir || info.Mode()&fs.ModeSticky == 0 || !s.isRoots(info) {
			if err := s.onlyRoot(at, info); err != nil {
				return err
			}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// isRoots reports whether root owns a file or directory.
func (s *Server) isRoots(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || stat.Uid == s.root)
}

// onlyRoot rejects a file or directory that is not owned by root, or that others can write to.
func (s *Server) onlyRoot(path string, info fs.FileInfo) error {
	if !s.isRoots(info) {
		return fmt.Errorf("%s is not owned by root", path)
	}
	if info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s is writable by group or others (mode %04o); run chmod go-w %s", path, info.Mode().Perm(), path)
	}
	return nil
}
