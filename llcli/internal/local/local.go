// SPDX-License-Identifier: Apache-2.0

// Package local contains the commands of llcli about this machine: preflight, detach, doctor,
// bundle, and the configuration of container runtimes. Most of them work without a running daemon.
package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// localOptions select the instance for a command that runs loxilightd on this machine instead of
// asking the daemon.
type localOptions struct{ config string }

func (o *localOptions) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.config, "config", "", "the daemon's configuration `FILE` (default: the file of the running daemon, or of --instance or --socket in /etc/loxilight; required if none runs and the socket is not in a directory /run/loxilight…)")
	command.Must(cmd.MarkFlagFilename("config", "yaml"))
}

// configFile returns the configuration of the instance that the flags and the environment name, as
// ControlURL does for its socket.
func configFile(a *command.App, o *localOptions) (string, error) {
	if o.config != "" {
		return o.config, nil
	}
	socket := strings.TrimPrefix(a.ControlURL(), "ipc://")
	if a.Instance != "" { // the instance is named; its socket is irrelevant
		socket = "/run/loxilight-" + a.Instance + command.ControlName
	}
	dir, ok := strings.CutSuffix(socket, command.ControlName)
	if config := runningConfig(a, dir); ok && config != "" {
		return config, nil
	}
	suffix, ours := strings.CutPrefix(dir, "/run/loxilight")
	if !ok || !ours || suffix != "" && (len(suffix) < 2 || suffix[0] != '-' || strings.Contains(suffix, "/")) {
		return "", command.Usagef("no running daemon is found behind socket %s, so its configuration is unknown: set --config FILE to the file that it is started with", socket)
	}
	if suffix == "-default" {
		suffix = ""
	}
	return "/etc/loxilight" + suffix + "/loxilightd.yaml", nil
}

// runningConfig returns the configuration with which the daemon that uses a run directory was
// started, or an empty string if no such daemon is running.
func runningConfig(a *command.App, runDir string) string {
	pid := client.DaemonProcess(a.Root, runDir)
	if pid == "" {
		return ""
	}
	process := filepath.Join(a.Root, "/proc", pid)
	text, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if err != nil {
		return ""
	}
	args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	for i, arg := range args {
		flag, value, isSet := strings.Cut(arg, "=")
		if !isSet && i+1 < len(args) {
			value = args[i+1]
		}
		if flag != "--config" && flag != "-config" || value == "" {
			continue
		}
		if !filepath.IsAbs(value) {
			dir, err := os.Readlink(filepath.Join(process, "cwd"))
			if err != nil {
				return ""
			}
			value = filepath.Join(dir, value)
		}
		return value
	}
	return "/etc/loxilight/loxilightd.yaml"
}

// loxilightd runs the daemon's program in a mode that starts no daemon, and returns its output and
// its exit code.
func loxilightd(ctx context.Context, a *command.App, args ...string) (out []byte, code int, err error) {
	program, err := a.Program()
	if err != nil {
		return nil, 0, err
	}
	var stdout, stderr bytes.Buffer
	code, err = a.Exec(ctx, &stdout, &stderr, program, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", program, err)
	}
	told := strings.TrimSpace(stderr.String())
	if strings.Contains(told, "flag provided but not defined") {
		return nil, 0, fmt.Errorf("%s has a different version than llcli, and does not support %s", program, strings.Join(args, " "))
	}
	for line := range strings.Lines(told) {
		if strings.HasPrefix(line, "time=") { // a line of its log
			_, _ = fmt.Fprint(a.Err, strings.TrimSpace(line)+"\n") // an error here cannot be reported
			continue
		}
		a.Note("%s", strings.TrimPrefix(strings.TrimSpace(line), "loxilightd: "))
	}
	return stdout.Bytes(), code, nil
}

// passOn runs loxilightd, and passes on its output and its exit code.
func passOn(ctx context.Context, a *command.App, args ...string) error {
	out, code, err := loxilightd(ctx, a, args...)
	if err != nil {
		return err
	}
	if code != 0 {
		err = &command.Silent{Code: code}
	}
	if a.Format == output.FormatYAML && json.Valid(out) {
		return cmp.Or(a.PrintValue(json.RawMessage(out)), err)
	}
	_, werr := a.Write(out)
	return cmp.Or(werr, err)
}

func preflightCommand(a *command.App) *cobra.Command {
	var o localOptions
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether loxilightd would start on this kernel, with the pinned maps",
		Long: `Load every program on the running kernel without attaching any, and say whether
what an earlier version left pinned can be taken over: before an upgrade, or before
a new kernel's first start. What would go wrong is reported as by doctor. A running
daemon is not disturbed. Needs root.

The exit code is 0 if a start would succeed, 1 if it would fail, and 3 if the check could not
run: no privileges, or no BPF on this machine.`,
		Example: "  llcli preflight\n  llcli preflight -o json",
		Args:    command.NoWords("preflight takes flags only"),
		RunE: a.RunLocal(func(ctx context.Context, _ []string) error {
			config, err := configFile(a, &o)
			if err != nil {
				return err
			}
			args := []string{"--config", config, "--preflight"}
			if !a.IsTable() {
				args = append(args, "--json")
			}
			return passOn(ctx, a, args...)
		}),
	}
	o.bind(cmd)
	return cmd
}

func detachCommand(a *command.App) *cobra.Command {
	var o localOptions
	var yes bool
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Remove programs, bridges, routes and the switch of this instance from the kernel",
		Long: `Detach the programs of this instance from all devices and remove its pins. The kernel then
forwards as if loxilight was not installed: no firewall rule is in force, and tracked
connections are lost. The network namespace of the switch is deleted if loxilight created it,
with the veth and other virtual devices in it, including those of pods and VMs. Move devices
that you need out of it first.

The configuration stays: the next start of the daemon attaches everything again.

Stop the daemon first: systemctl stop loxilightd. Needs root. At a terminal, llcli asks for
confirmation, unless --yes is given.`,
		Example: "  systemctl stop loxilightd && llcli detach",
		Args:    command.NoWords("detach takes flags only"),
		RunE: a.RunLocal(func(ctx context.Context, _ []string) error {
			config, err := configFile(a, &o)
			if err != nil {
				return err
			}
			if !yes && a.Terminal != nil && a.Terminal() && !a.Sure(ctx,
				"Packets will pass without any rule of the firewall, NAT or Service. Detach? Type yes to continue: ") {
				return errors.New("nothing was detached")
			}
			return passOn(ctx, a, "--config", config, "--detach")
		}),
	}
	o.bind(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation at a terminal")
	return cmd
}

// Commands returns the commands about this machine.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{doctorCommand(a), bundleCommand(a), preflightCommand(a), detachCommand(a), cniCommand(a)}
}
