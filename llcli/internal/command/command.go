// SPDX-License-Identifier: Apache-2.0

// Package command contains what all commands of llcli share: the resources of the process, the
// flags of every command, the connection to the daemon, and errors about the command line. It knows
// no command and no kind of objects.
package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// App is one run of llcli.
type App struct {
	Env
	*output.Printer

	Socket   string        // flag: the daemon's socket
	Instance string        // flag: the daemon's instance
	Timeout  time.Duration // of each call
	Interval time.Duration // of repeated output

	Started bool // a command's own code runs: errors are no longer usage errors
}

// New returns the run of a process.
func New(env Env) *App {
	return &App{Env: env, Printer: output.New(env.Out, env.Err, env.Width, env.Getenv)}
}

// Run makes f the body of a command: f gets a connection to the daemon, and its errors are no
// longer usage errors.
func (a *App) Run(f func(ctx context.Context, d Daemon, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.RunLocal(func(ctx context.Context, args []string) error {
			d, err := a.Connect(ctx)
			if err != nil {
				return err
			}
			err = inArguments(cmd, f(ctx, d, args))
			return errors.Join(err, d.Close())
		})(cmd, args)
	}
}

// RunLocal makes f the body of a command that may need no daemon.
func (a *App) RunLocal(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := checkFormat(cmd, a.Format); err != nil {
			return err
		}
		if a.Timeout <= 0 {
			return fmt.Errorf("--timeout %s: want more than 0", a.Timeout)
		}
		a.Started = true
		return f(cmd.Context(), args)
	}
}

// Connect connects to the daemon that the flags and the environment name.
func (a *App) Connect(ctx context.Context) (Daemon, error) {
	d, err := a.Dial(ctx, a.ControlURL(), a.Timeout)
	if errors.Is(err, client.ErrNotRunning) && a.ControlURL() == api.ControlSocket {
		a.noteInstances()
	}
	return d, err
}

// noteInstances names the instances that have a socket, if the instance without a name is not
// running.
func (a *App) noteInstances() {
	const head = "/run/loxilight-"
	sockets, _ := filepath.Glob(filepath.Join(a.Root, head+"*"+ControlName)) // the pattern is valid
	var names []string
	for _, s := range sockets {
		s = strings.TrimSuffix(strings.TrimPrefix(s, a.Root), ControlName)
		names = append(names, "--instance "+strings.TrimPrefix(s, head))
	}
	if len(names) > 0 {
		a.Note("other instances have sockets; use %s", strings.Join(names, " or "))
	}
}

// ControlURL returns the control socket as a nanomsg URL.
func (a *App) ControlURL() string {
	socket, instance := a.Socket, a.Instance
	if socket == "" && instance == "" {
		socket = a.Getenv("LOXILIGHT_SOCKET")
	}
	if instance == "" {
		instance = a.Getenv("LOXILIGHT_INSTANCE")
	}
	switch {
	case strings.Contains(socket, "://"):
		return socket
	case socket != "":
		return "ipc://" + socket
	case instance != "" && instance != "default":
		return "ipc:///run/loxilight-" + instance + "/control.sock"
	default:
		return api.ControlSocket
	}
}

// Must panics on errors that only a mistake in llcli can cause.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// NamesObjects marks, as an annotation, commands that show objects.
const NamesObjects = "objects"

// checkFormat rejects unknown output formats, and the format name for a command that neither shows
// nor changes objects.
func checkFormat(cmd *cobra.Command, format string) error {
	if !slices.Contains(output.Formats, format) {
		return fmt.Errorf("--output %q: want one of %s", format, strings.Join(output.Formats, ", "))
	}
	if format == output.FormatName && cmd.Annotations[NamesObjects] == "" && cmd.Flags().Lookup("dry-run") == nil {
		return fmt.Errorf("--output name: only for get, list and commands that change objects; want one of %s", strings.Join(output.Formats[:len(output.Formats)-1], ", "))
	}
	return nil
}

// Self returns the llcli command line with the options that select the daemon.
func (a *App) Self() string {
	words := []string{"llcli"}
	if a.Socket != "" {
		words = append(words, "--socket", a.Socket)
	}
	if a.Instance != "" {
		words = append(words, "--instance", a.Instance)
	}
	return strings.Join(words, " ")
}

// HideDefault removes meaningless defaults of flags from the help.
func HideDefault(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flag := flags.Lookup(name)
		switch flag.Value.Type() {
		case "int", "int64":
			flag.DefValue = "0"
		default:
			flag.DefValue = ""
		}
	}
}

// ControlName ends the path of every control socket in a run directory.
const ControlName = "/control.sock"
