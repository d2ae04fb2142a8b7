// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

func cniInstallPlugin(a *command.App) *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "install-plugin",
		Short: "Put the plugin into the directory where container runtimes look for it",
		Long: `Install the program loxilight-cni atomically in the directory where container runtimes look
for plugins; a running copy continues. This is for the container that prepares a Kubernetes
node; the Debian package contains the plugin.`,
		Args: command.NoWords("install-plugin takes flags only"),
		RunE: a.RunLocal(func(context.Context, []string) error {
			if err := mayMake("to", to, pluginDirs[0]); err != nil {
				return err
			}
			text, err := os.ReadFile(from)
			if err != nil {
				return fmt.Errorf("the plugin (--from): %w", err)
			}
			path := filepath.Join(to, pluginName)
			if err := replaceFile(path, text, 0o755); err != nil {
				return err
			}
			a.Printf("%s\n", path)
			return nil
		}),
	}
	cmd.Flags().StringVar(&from, "from", filepath.Join(pluginDirs[1], pluginName), "the plugin, a `FILE`")
	cmd.Flags().StringVar(&to, "to", pluginDirs[0], "the `DIRECTORY` that the runtime has plugins in")
	command.Must(cmd.MarkFlagFilename("from"))
	command.Must(cmd.MarkFlagDirname("to"))
	return cmd
}

// keepInterval is how often the configuration is checked.
const keepInterval = 2 * time.Second

func cniKeep(a *command.App) *cobra.Command {
	var o cniOptions
	cmd := &cobra.Command{
		Use:   "keep",
		Short: "Keep the configuration for container runtimes in place while this runs",
		Long: `Install the configuration 10-loxilight.conflist as soon as pods can be attached, and restore
it if it is removed or changed, until this command ends. The configuration stays afterwards,
so that pods can be removed in the meantime. With --file, the configuration follows that file.
This is for the daemon's sidecar in Kubernetes.`,
		Args: command.NoWords("keep takes flags only"),
		RunE: a.RunLocal(func(ctx context.Context, _ []string) error {
			if err := mayMake("dir", o.dir, usualConfDir); err != nil {
				return err
			}
			if _, err := conflist(a, &o, &cniTarget{}); err != nil {
				return err
			}
			said, k := "", keeper{App: a, o: &o}
			for {
				path, err := k.once(ctx)
				switch {
				case err == nil && path != "": // reported even if the command must end now
					said = ""
					a.Note("installed %s", path)
					warnOfOthers(a, o.dir, path)
				case ctx.Err() != nil:
					return nil
				case err != nil && err.Error() != said:
					said = err.Error()
					a.Note("%s", said)
				}
				select {
				case <-time.After(keepInterval):
				case <-ctx.Done():
					return nil
				}
			}
		}),
	}
	o.bind(a, cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "keep this `FILE` in place rather than the usual configuration")
	command.Must(cmd.MarkFlagFilename("file", "conflist"))
	return cmd
}

// keeper keeps a configuration in its place.
type keeper struct {
	*command.App
	o      *cniOptions
	asked  cniTarget  // as the daemon last reported it
	target *cniTarget // completed; nil: not known yet
}

// once installs the configuration if it differs from the wanted one, and returns its path if it
// did.
func (k *keeper) once(ctx context.Context) (path string, err error) {
	before, err := os.ReadFile(k.o.path())
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if k.target != nil || k.o.file != "" {
		if text, err := conflist(k.App, k.o, k.target); err != nil || there && string(before) == string(text) {
			return "", err
		}
	}
	d, err := k.Connect(ctx)
	if err != nil && there && k.target == nil && k.o.file == "" {
		return "", nil // the installed file cannot be checked without the daemon
	}
	if err != nil {
		return "", fmt.Errorf("not installed yet: %w", err)
	}
	target := daemonTarget(ctx, k.App, d)
	text, err := k.wanted(target)
	if err == nil && there && string(before) == string(text) {
		return "", d.Close()
	}
	if err == nil {
		err = awaitPods(ctx, k.App, d, k.o)
	}
	if err = errors.Join(err, d.Close()); err != nil {
		return "", fmt.Errorf("not installed yet: %w", err)
	}
	if p, _ := readPlugin(text); k.o.file != "" && p.strays(&target) != "" {
		k.Note("%s: %s", k.o.file, p.strays(&target))
	}
	return k.o.path(), replaceFile(k.o.path(), text, 0o644)
}

// wanted returns the desired configuration according to the daemon's current state.
func (k *keeper) wanted(target cniTarget) ([]byte, error) {
	if k.o.file == "" && (k.target == nil || k.asked != target) { // report missing values once
		k.asked, k.target = target, &target
		k.target.complete(k.App, k.o.path())
	}
	return conflist(k.App, k.o, k.target)
}
