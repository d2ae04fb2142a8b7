// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/api/document"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// isUnreachable reports whether err means that the daemon cannot be reached.
func isUnreachable(err error) bool {
	return errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrPermission) || errors.Is(err, client.ErrNotAnswering)
}

// usageError is a command line that cannot be carried out.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// noWords refuses arguments, with a hint what to do instead.
func noWords(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("unexpected %q; %s", args[0], hint)
		}
		return nil
	}
}

// needWords refuses fewer arguments than n.
func needWords(n int, usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return usagef("something is missing: %s", usage)
		}
		return nil
	}
}

// flagError adds the expected value of a flag to the library's error.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return withFlag(cmd, unknown)
	}
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want := ""
	switch invalid.GetFlag().Value.Type() {
	case "duration":
		want = "a time with its unit, such as 30s or 5m"
	case typeConfirm:
		want = "1s to 1h"
	case "int", "int64":
		want = "a number"
	case "uint64":
		want = "a number, 0 or more"
	case "bool":
		want = "true or false"
	case "stringSlice":
		want = "values, with commas between them, without quotes"
	case "stringToString":
		want = "KEY=VALUE,..."
	default:
		return err
	}
	return usagef("--%s %s: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}

// oneName wants exactly one argument.
func oneName(command, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("%s is missing: llcli %s %s", what, command, what)
		case args[0] == "":
			return usagef("%s is empty: llcli %s %s", what, command, what)
		case len(args) > 1:
			return usagef("unexpected %q: llcli %s takes one %s", args[1], command, what)
		}
		return nil
	}
}

// noCommand refuses words after a command that only has commands of its own.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if instead := foreignCommands[strings.ToLower(args[0])]; instead != "" && !cmd.HasParent() {
		return usagef("%s; use %s", text, instead)
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usagef("%s", text)
}

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return ExitUsage
	}
	if e, ok := errors.AsType[*errSilent](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		if e.Reason() == api.ReasonTimeout {
			return ExitNotReady
		}
		return ExitFailed
	}
	if isUnreachable(err) {
		return ExitUnreachable
	}
	return ExitFailed
}

// report prints err, with which cmd ended, for people. A closed pipe (llcli get | head) and an
// interrupt by the user are not reported.
func (a *app) report(cmd *cobra.Command, err error) {
	interrupted := errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrOutcomeUnknown)
	_, silent := errors.AsType[*errSilent](err)
	if err == nil || silent || errors.Is(err, errDiffers) || errors.Is(err, errDegraded) || errors.Is(err, syscall.EPIPE) || interrupted {
		return
	}
	if a.output == formatJSON {
		a.reportJSON(err)
		return
	}
	text := err.Error()
	e, ok := errors.AsType[*api.Error](err)
	listed := ok && e.Data != nil && len(e.Data.NotReady) > 0
	if listed { // it repeats the first entry of the list
		first := e.Data.NotReady[0]
		text, _, _ = strings.Cut(text, fmt.Sprintf("; %s: %s", first.Object, first.State))
	}
	// An error of writing this cannot be reported.
	_, _ = fmt.Fprintf(a.Err, "llcli: %s\n", text)
	if l, ok := errors.AsType[*located](err); ok {
		for _, other := range l.others {
			_, _ = fmt.Fprintf(a.Err, "llcli: %s\n", other.Message)
		}
	}
	if listed {
		for _, object := range e.Data.NotReady {
			_, _ = fmt.Fprintf(a.Err, "  %s is %s%s\n", object.Object, object.State, prefixed(": ", object.Message))
		}
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.RequestID != "" {
		_, _ = fmt.Fprintf(a.Err, "llcli: to be sure, run the same again with --request-id %s\n", e.RequestID)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		_, _ = fmt.Fprintf(a.Err, "llcli: see %s --help\n", cmd.CommandPath())
	}
}

// errorReport is an error for programs.
type errorReport struct {
	Code      int               `json:"code"` // exit code
	Message   string            `json:"message"`
	Reason    api.Reason        `json:"reason,omitempty"`
	Object    string            `json:"object,omitempty"`
	Field     string            `json:"field,omitempty"`
	Others    []api.ObjectError `json:"others,omitempty"`
	NotReady  []api.NotReady    `json:"notReady,omitempty"`
	RequestID string            `json:"requestId,omitempty"` // repeats a change whose outcome is unknown
}

// reportJSON prints err as one line of JSON.
func (a *app) reportJSON(err error) {
	r := errorReport{Code: exitCode(err), Message: err.Error()}
	if e, ok := errors.AsType[*api.Error](err); ok {
		r.Reason = e.Reason()
		if e.Data != nil {
			r.Object, r.Field, r.Others, r.NotReady = e.Data.Object, e.Data.Field, e.Data.Others, e.Data.NotReady
		}
	}
	if l, ok := errors.AsType[*located](err); ok {
		r.Others = l.others
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		r.RequestID = e.RequestID
	}
	line, err := document.Marshal(map[string]errorReport{"error": r})
	if err != nil {
		line = []byte(err.Error())
	}
	_, _ = fmt.Fprintf(a.Err, "%s\n", line) // an error of writing this cannot be reported
}

// prefixed returns prefix and text, or nothing where text is empty.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
