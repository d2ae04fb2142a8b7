// SPDX-License-Identifier: Apache-2.0

// Package cli is llcli: it turns words on a command line and documents in files into requests to
// loxilightd, and the answers into tables, JSON or YAML. It makes no decisions about networks: the
// daemon determines the meaning of a document, and whether it is valid. Everything it needs from
// its process is in an [Env], so that tests run it completely.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1 // refused by the daemon, or failed here
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitNotReady    = 4 // done and durable, but not Ready in time
)

// Daemon is the daemon as the commands need it.
type Daemon interface {
	// Call calls a method that changes nothing, and decodes its result: objects
	// and counters whole, lists page by page.
	Call(ctx context.Context, method string, params, result any) error
	// Change calls a method that changes something, at most once. wait is how
	// long the daemon may take on purpose.
	Change(ctx context.Context, method, requestID string, wait time.Duration, params, result any) error
	// Watch yields objects, and then each object that changes, until ctx ends.
	Watch(ctx context.Context, o client.WatchOptions) iter.Seq2[client.Watched, error]
	// Events subscribes to topics; without any, to all.
	Events(ctx context.Context, topics ...string) (Events, error)
	Close() error
}

// Events is a subscription.
type Events interface {
	// Next waits for the next event.
	Next(ctx context.Context) (client.Event, error)
	Close()
}

// Env contains the resources of the process that a run uses.
type Env struct {
	Args   []string // without the program's name
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
	// Width returns the columns of the terminal that Out is; 0: it is no terminal.
	Width func() int
	// Dial connects to the daemon at a nanomsg URL. Each call may take so long.
	Dial func(ctx context.Context, url string, timeout time.Duration) (Daemon, error)
	// Terminal reports whether the user can be asked at a terminal; nil: no terminal.
	Terminal func() bool
	// Now is the current time, used only for output.
	Now func() time.Time
	// Edit lets the user edit a file with the editor of his choice.
	Edit func(ctx context.Context, path string) error
	// Program returns the path of loxilightd on this machine.
	Program func() (string, error)
	// Exec runs a program to its end and returns its exit code.
	Exec func(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error)
	// Root stands before the paths of the machine's files; empty: this machine.
	Root string
	// Version and Build are llcli's own.
	Version, Build string
}

// app is one run.
type app struct {
	Env
	out *bufio.Writer

	socket   string
	instance string
	timeout  time.Duration
	output   string
	watch    bool
	interval time.Duration

	started bool // a command's own code runs: errors are no longer usage errors
}

// Run carries out one command line and returns the exit code.
func Run(ctx context.Context, env Env) int {
	a := &app{Env: env, out: bufio.NewWriterSize(env.Out, 64<<10)}
	root := a.root()
	root.SetArgs(env.Args)
	root.SetIn(env.In)
	root.SetOut(a.out)
	root.SetErr(env.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.started && !isUnreachable(err) {
		err = &usageError{err}
	}
	if flushErr := a.out.Flush(); err == nil && flushErr != nil {
		err = fmt.Errorf("write the output: %w", flushErr)
	}
	a.report(cmd, err)
	return exitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "llcli",
		Short: "Control loxilightd, the switch, router, load balancer and firewall of this node",
		Long: `llcli configures loxilightd and shows its state.

The configuration of the daemon consists of objects. Each has a kind: an Interface that the
data plane attaches to, a Service that spreads connections over backends, a rule of
the firewall, a bridge, a route. llcli explain lists the kinds. Objects
are written in YAML or JSON and applied as a whole: a change takes place
completely and durably, or not at all.`,
		Example: `  llcli apply -f web.yaml --wait 10s
  llcli service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080
  llcli get services -o wide
  llcli connections --service web
  llcli status`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noCommand,
	}
	root.SetFlagErrorFunc(flagError)
	root.Version = a.Version
	root.SetVersionTemplate("llcli {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the daemon's control socket, a `PATH` or ipc://PATH (default: $LOXILIGHT_SOCKET, or the socket of --instance)")
	flags.StringVar(&a.instance, "instance", "", "the `NAME` of the daemon's instance (default: $LOXILIGHT_INSTANCE, or default)")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for the daemon's answer, a `TIME` such as 30s")
	flags.StringVarP(&a.output, "output", "o", formatTable, "`FORM` of the output: "+strings.Join(formats, ", "))
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	must(root.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions))
	a.addCommands(root)
	wrapUsage(root, a.Width())
	return root
}

// run makes f the body of a command: with a connection to the daemon, and with errors that are no
// longer usage errors.
func (a *app) run(f func(ctx context.Context, d Daemon, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.runLocal(func(ctx context.Context, args []string) error {
			d, err := a.dial(ctx)
			if err != nil {
				return err
			}
			err = inArguments(cmd, f(ctx, d, args))
			return errors.Join(err, d.Close())
		})(cmd, args)
	}
}

// runLocal makes f the body of a command that may need no daemon.
func (a *app) runLocal(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := checkFormat(cmd, a.output); err != nil {
			return err
		}
		if a.timeout <= 0 {
			return fmt.Errorf("--timeout %s: want more than 0", a.timeout)
		}
		a.started = true
		return f(cmd.Context(), args)
	}
}

// dial connects to the daemon that the flags and the environment name.
func (a *app) dial(ctx context.Context) (Daemon, error) {
	d, err := a.Dial(ctx, a.controlURL(), a.timeout)
	if errors.Is(err, client.ErrNotRunning) && a.controlURL() == api.ControlSocket {
		a.noteInstances()
	}
	return d, err
}

// noteInstances names the instances that have a socket, if the instance without a name does not
// run.
func (a *app) noteInstances() {
	const head = "/run/loxilight-"
	sockets, _ := filepath.Glob(filepath.Join(a.Root, head+"*"+controlName)) // of a good pattern
	var names []string
	for _, s := range sockets {
		s = strings.TrimSuffix(strings.TrimPrefix(s, a.Root), controlName)
		names = append(names, "--instance "+strings.TrimPrefix(s, head))
	}
	if len(names) > 0 {
		a.note("other instances have sockets: say %s", strings.Join(names, " or "))
	}
}

// controlURL returns the control socket as a nanomsg URL.
func (a *app) controlURL() string {
	socket, instance := a.socket, a.instance
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

// must panics on errors that only a mistake in this package can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
