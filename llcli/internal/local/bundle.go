// SPDX-License-Identifier: Apache-2.0

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/loxilight/loxilight/llcli/internal/bundle"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
)

func bundleCommand(a *command.App) *cobra.Command {
	var o localOptions
	var anonymize bool
	cmd := &cobra.Command{
		Use:   "bundle [FILE]",
		Short: "Write a support archive of this machine, without secrets",
		Long: `Write an archive (tar.gz, readable by its owner only) for remote troubleshooting: versions,
the findings of doctor, status, objects, counters and some connections, the log of the unit,
configuration and object files, and the state of kernel and network. It works whether or not
the daemon is running. manifest.json lists the files in the archive, and what is missing and
why. The command changes nothing and takes at most two minutes.

Secrets are removed: values of keys whose names suggest secrets, private keys, and text in
the form of a token; the manifest contains the rules. A secret that these rules do not match
stays: check the archive before you pass it on.`,
		Example: "  llcli bundle\n  llcli bundle /tmp/web.tar.gz --anonymize",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.RunLocal(func(ctx context.Context, args []string) error {
			file := a.Now().UTC().Format("loxilight-20060102T150405Z.tar.gz")
			if len(args) == 1 {
				file = args[0]
			}
			config, err := configFile(a, &o)
			if err != nil {
				return err
			}
			return writeBundle(ctx, a, file, bundleOptions(a, config, anonymize))
		}),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"tar.gz"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&anonymize, "anonymize", false, "replace addresses and the name of the host, consistently throughout the archive")
	return cmd
}

// bundleOptions determines the directories of the instance.
func bundleOptions(a *command.App, config string, anonymize bool) bundle.Options {
	var c struct {
		Instance  string
		RunDir    string `yaml:"runDir"`
		StateDir  string `yaml:"stateDir"`
		PinDir    string `yaml:"pinDir"`
		ObjectDir string `yaml:"objectDir"`
	}
	if text, err := os.ReadFile(config); err == nil {
		_ = yaml.Unmarshal(text, &c) // doctor reports errors in it
	}
	suffix, unit := "", "loxilightd.service"
	instance := cmp.Or(c.Instance, a.Instance, a.Getenv("LOXILIGHT_INSTANCE"), "default")
	if instance != "default" {
		suffix, unit = "-"+instance, "loxilightd@"+instance+".service"
	}
	o := bundle.Options{
		Instance: instance, Config: config, Unit: unit, Version: a.Version, Anonymize: anonymize, Now: a.Now(), Root: a.Root, Exec: a.Exec,
		RunDir:    cmp.Or(c.RunDir, "/run/loxilight"+suffix),
		StateDir:  cmp.Or(c.StateDir, "/var/lib/loxilight"+suffix),
		PinDir:    cmp.Or(c.PinDir, "/sys/fs/bpf/loxilight"+suffix),
		ObjectDir: cmp.Or(c.ObjectDir, "/etc/loxilight"+suffix+"/conf.d"),
	}
	if program, err := a.Program(); err == nil {
		o.Loxilightd = program
	}
	return o
}

// writeBundle writes the archive into a new file.
func writeBundle(ctx context.Context, a *command.App, file string, o bundle.Options) (err error) {
	d, err := dialForBundle(ctx, a, o.RunDir)
	if err != nil {
		o.CallErr = err
	} else {
		o.Call = d.Call
		defer func() { err = errors.Join(err, d.Close()) }()
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	written := &counted{w: f}
	manifest, err := bundle.Write(ctx, written, o)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", file, err), os.Remove(file))
	}
	if !a.IsTable() {
		return a.PrintValue(manifest)
	}
	a.Printf("%s: %s, %s bytes\n", file, output.Plural(uint64(len(manifest.Files)), "file"), output.Count(uint64(written.n)))
	t := a.Table(output.Column{Title: "NOT COLLECTED"}, output.Column{Title: "WHY", Flexible: true})
	for _, m := range manifest.Missing {
		t.Add(output.Cell{Text: m.What}, output.Cell{Text: m.Why})
	}
	a.Section(t)
	return nil
}

// dialForBundle connects to the daemon of the configuration, unless a flag selects a different one.
func dialForBundle(ctx context.Context, a *command.App, runDir string) (command.Daemon, error) {
	url := "ipc://" + filepath.Join(runDir, "control.sock")
	if a.Socket != "" || a.Getenv("LOXILIGHT_SOCKET") != "" {
		url = a.ControlURL()
	}
	return a.Dial(ctx, url, min(a.Timeout, 5*time.Second))
}

// counted counts the bytes written.
type counted struct {
	w io.Writer
	n int
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += n
	return n, err
}
