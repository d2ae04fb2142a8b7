// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

// pluginName is the name of the plugin in configurations and directories.
const pluginName = "loxilight-cni"

// usualConfDir is where container runtimes read configurations from.
const usualConfDir = "/etc/cni/net.d"

// cniOptions are the place and the contents of a configuration for container runtimes.
type cniOptions struct{ dir, network, file string }

func (o *cniOptions) bind(a *command.App, cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dir, "dir", usualConfDir, "the `DIRECTORY` that the runtime reads configurations from")
	cmd.Flags().StringVar(&o.network, "network", "default", "the PodNetwork `NAME` that pods are in")
	command.Must(cmd.MarkFlagDirname("dir"))
	command.Must(cmd.RegisterFlagCompletionFunc("network", kinds.CompleteNames(a, api.KindPodNetwork)))
}

// mayMake rejects a directory that is not the usual one and whose parent does not exist, so that a
// mistyped directory is not created.
func mayMake(flag, folder, usual string) error {
	parent := filepath.Dir(filepath.Clean(folder))
	if folder == usual {
		return nil
	}
	info, err := os.Stat(parent)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir():
		return command.Usagef("--%s %s: directory %s does not exist: check the spelling, or create it first", flag, folder, parent)
	default:
		return err
	}
}

func (o *cniOptions) path() string { return filepath.Join(o.dir, "10-loxilight.conflist") }

func cniCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Make container runtimes attach pods with loxilight, and report whether they can",
		Long: `Container runtimes find the plugin loxilight-cni through a configuration in /etc/cni/net.d,
and consider a node ready as soon as a configuration exists.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return command.Usagef("unexpected %q; llcli cni install, install-plugin, prepare, keep, uninstall or status", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(cniInstall(a), cniInstallPlugin(a), cniPrepare(a), cniKeep(a), cniUninstall(a), cniStatusCommand(a))
	return cmd
}

func cniInstall(a *command.App) *cobra.Command {
	var o cniOptions
	var force bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the configuration for container runtimes once pods can be attached",
		Long: `Wait until the daemon can attach pods, at most for --timeout, then install the configuration
10-loxilight.conflist atomically. An existing configuration with different content stays,
unless --force is given: it may have been adapted. --file installs your own configuration
instead.

If the daemon does not use the defaults, the configuration contains its socket and its state
directory, as the daemon reports them.`,
		Example: "  llcli cni install --timeout 1m\n  llcli cni install --file /usr/share/loxilight/10-loxilight.conflist",
		Args:    command.NoWords("install takes flags only"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
			if err := mayMake("dir", o.dir, usualConfDir); err != nil {
				return err
			}
			target := daemonTarget(ctx, a, d)
			if o.file == "" {
				target.complete(a, o.path())
			}
			text, err := conflist(a, &o, &target)
			if err != nil {
				return err
			}
			before, err := os.ReadFile(o.path())
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err == nil && string(before) != string(text) && !force {
				return fmt.Errorf("%s already exists with other content: check it, or replace it with --force", o.path())
			}
			if err := awaitPods(ctx, a, d, &o); err != nil {
				return fmt.Errorf("not installed: %w", err)
			}
			if err := replaceFile(o.path(), text, 0o644); err != nil {
				return err
			}
			a.Printf("%s\n", o.path())
			if p, _ := readPlugin(text); p.strays(&target) != "" {
				a.Note("%s: %s", o.path(), p.strays(&target))
			}
			warnOfOthers(a, o.dir, o.path())
			return nil
		}),
	}
	o.bind(a, cmd)
	cmd.Flags().BoolVar(&force, "force", false, "replace a configuration with other content")
	cmd.Flags().StringVar(&o.file, "file", "", "install this `FILE` rather than the usual configuration")
	command.Must(cmd.MarkFlagFilename("file", "conflist"))
	return cmd
}

// status returns the request that asks whether pods can be attached.
func (o *cniOptions) status() api.CNIParams {
	config, err := json.Marshal(map[string]string{"cniVersion": "1.1.0", "name": "loxilight", "type": pluginName, "network": o.network})
	if err != nil {
		panic(err) // strings only
	}
	return api.CNIParams{Command: api.CNIStatus, Config: config}
}

// awaitPods waits until pods can be attached.
func awaitPods(ctx context.Context, a *command.App, d command.Daemon, o *cniOptions) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	for {
		err := d.Call(ctx, api.MethodCNI, o.status(), new(json.RawMessage))
		var refused *api.Error
		if err == nil || !errors.As(err, &refused) || refused.Reason() != api.ReasonUnavailable {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// replaceFile replaces a file atomically, by renaming: readers never see a partial file.
func replaceFile(path string, text []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".loxilight-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// warnOfOthers reports configurations that runtimes use instead of ours.
func warnOfOthers(a *command.App, dir, ours string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // no runtime reads them either
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.Name() < filepath.Base(ours) && (ext == ".conflist" || ext == ".conf" || ext == ".json") {
			a.Note("%s sorts before it: runtimes use the first configuration", filepath.Join(dir, e.Name()))
		}
	}
}

func cniUninstall(a *command.App) *cobra.Command {
	var o cniOptions
	var plugins string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the configuration for container runtimes",
		Long: `Remove the configuration 10-loxilight.conflist, and with --plugin-dir also the program
loxilight-cni in that directory. Attached pods stay attached, but runtimes can no longer
attach pods, and most runtimes can no longer remove them: move the pods away first.`,
		Args: command.NoWords("uninstall takes flags only"),
		RunE: a.RunLocal(func(context.Context, []string) error {
			text, err := os.ReadFile(o.path())
			if err == nil && !names(text) {
				return fmt.Errorf("%s has no plugin of type %s: it belongs to another program", o.path(), pluginName)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := takeAway(a, o.path()); err != nil || plugins == "" {
				return err
			}
			return takeAway(a, filepath.Join(plugins, pluginName))
		}),
	}
	o.bind(a, cmd)
	cmd.Flags().StringVar(&plugins, "plugin-dir", "", "also remove the plugin, from this `DIRECTORY`")
	command.Must(cmd.MarkFlagDirname("plugin-dir"))
	return cmd
}

// takeAway removes a file; a missing file is reported.
func takeAway(a *command.App, path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		a.Note("%s does not exist", path)
		return nil
	}
	return err
}
