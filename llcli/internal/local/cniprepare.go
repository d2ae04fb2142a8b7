// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

func cniPrepare(a *command.App) *cobra.Command {
	var dir string
	var user uint32
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Let a non-root user keep the configuration for container runtimes",
		Long: `Make the directory with the configurations for container runtimes writable for the group of a
user, with the sticky bit: the user can create files there, but cannot change or remove files
of other users. An existing configuration 10-loxilight.conflist is given to the user. This is
for the container that prepares a Kubernetes node, on which llcli cni keep runs without root.
It needs root, or the capability CAP_CHOWN and ownership of the directory.`,
		Args: command.NoWords("prepare takes flags only"),
		RunE: a.RunLocal(func(context.Context, []string) error {
			if user == 0 {
				return command.Usagef("--user: the id of a non-root user is required")
			}
			if err := mayMake("dir", dir, usualConfDir); err != nil {
				return err
			}
			return prepareConfDir(dir, int(user))
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", usualConfDir, "the `DIRECTORY` that the runtime reads configurations from")
	cmd.Flags().Uint32Var(&user, "user", 0, "the `NUMBER` of the user and of its group")
	command.Must(cmd.MarkFlagDirname("dir"))
	command.Must(cmd.MarkFlagRequired("user"))
	return cmd
}

// prepareConfDir lets a user create files in a directory that root owns. The user must be the only
// member of the group with the same number.
func prepareConfDir(dir string, user int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s does not belong to user %d: chown it to root", dir, os.Geteuid())
	}
	if err := os.Chown(dir, -1, user); err != nil {
		return err
	}
	// The last step opens the directory: until then only its owner can write there.
	path := (&cniOptions{dir: dir}).path()
	switch file, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !file.Mode().IsRegular() || links(file) > 1: // it may be a hard link to another user's file
		return fmt.Errorf("%s is not a regular file, or has several hard links: remove it", path)
	default:
		if err := os.Lchown(path, user, user); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o775|fs.ModeSticky)
}

// links returns the number of hard links of a file.
func links(file fs.FileInfo) uint64 {
	if stat, ok := file.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Nlink)
	}
	return 1
}
