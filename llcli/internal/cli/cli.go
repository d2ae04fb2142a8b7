// SPDX-License-Identifier: Apache-2.0

// Package cli is llcli: it turns the words of a command line and the documents in files into
// requests to loxilightd, and the answers into tables, JSON or YAML. It makes no decisions about
// networks: the daemon determines the meaning of a document, and whether it is valid. Everything it
// needs from its process is in a [command.Env], so that tests can run all of it.
package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitDone        = 0
	ExitFailed      = 1 // rejected by the daemon, or failed here
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitNotReady    = 4 // done and durable, but not Ready in time
)

// Run carries out one command line and returns the exit code.
func Run(ctx context.Context, env command.Env) int {
	a := command.New(env)
	root := newRoot(a, inWords(env.Args))
	root.SetArgs(env.Args)
	root.SetIn(env.In)
	root.SetOut(a.Printer)
	root.SetErr(env.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.Started && !command.IsUnreachable(err) {
		err = &command.UsageError{Err: err}
	}
	if flushErr := a.Flush(); err == nil && flushErr != nil {
		err = fmt.Errorf("write the output: %w", flushErr)
	}
	report(a, cmd, err)
	return exitCode(err)
}

// inWords returns a function that reports whether one of some words is in a command line, so that a
// noun with these words needs its verbs. The pages of llcli man show all of them.
func inWords(args []string) func(words ...string) bool {
	return func(words ...string) bool {
		return slices.Contains(args, "man") || slices.ContainsFunc(words, func(word string) bool { return slices.Contains(args, word) })
	}
}

// newRoot returns the command llcli. The nouns whose words are not used lack their verbs: it takes
// most of the time of a short command to make all of them.
func newRoot(a *command.App, isUsed func(words ...string) bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "llcli",
		Short: "Control loxilightd, the switch, router, load balancer and firewall of this node",
		Long: `llcli configures loxilightd and shows its state.

The configuration of the daemon consists of objects. Each has a kind: an Interface to which
the data plane attaches, a Service that distributes connections over backends, a firewall
rule, a bridge, a route. llcli explain lists the kinds. Objects are written in YAML or JSON
and applied in transactions: a change takes effect completely and durably, or not at all.`,
		Example: `  llcli apply -f web.yaml --wait 10s
  llcli service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080
  llcli get services -o wide
  llcli connections --service web
  llcli status`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          command.NoCommand,
	}
	root.SetFlagErrorFunc(flagError)
	root.Version = a.Version
	root.SetVersionTemplate("llcli {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	flags := root.PersistentFlags()
	flags.StringVar(&a.Socket, "socket", "", "the daemon's control socket, a `PATH` or ipc://PATH (default: $LOXILIGHT_SOCKET, or the socket of --instance)")
	flags.StringVar(&a.Instance, "instance", "", "the `NAME` of the daemon's instance (default: $LOXILIGHT_INSTANCE, or default)")
	flags.DurationVar(&a.Timeout, "timeout", 10*time.Second, "how long to wait for the daemon's answer, a `TIME` such as 30s")
	flags.StringVarP(&a.Format, "output", "o", output.FormatTable, "`FORMAT` of the output: "+strings.Join(output.Formats, ", "))
	command.Must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Formats, cobra.ShellCompDirectiveNoFileComp)))
	command.Must(root.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions))
	addCommands(a, root, isUsed)
	wrapUsage(root, a.Width())
	return root
}
