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
	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
	case changes.TypeConfirm:
		want = "1s to 1h"
	case "int", "int64":
		want = "a number"
	case "uint64":
		want = "a number, 0 or more"
	case "bool":
		want = "true or false"
	case "stringSlice":
		want = "values separated by commas, without quotes"
	case "stringToString":
		want = "KEY=VALUE,..."
	default:
		return err
	}
	return command.Usagef("--%s %s: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}

// exitCode is the only place where errors become exit codes.
func exitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*command.UsageError](err); ok {
		return ExitUsage
	}
	if e, ok := errors.AsType[*command.Silent](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		if e.Reason() == api.ReasonTimeout {
			return ExitNotReady
		}
		return ExitFailed
	}
	if command.IsUnreachable(err) {
		return ExitUnreachable
	}
	return ExitFailed
}

// report prints err, with which cmd failed, in human-readable form. A closed pipe (llcli get |
// head) and an interrupt by the user are not reported.
func report(a *command.App, cmd *cobra.Command, err error) {
	interrupted := errors.Is(err, context.Canceled) && !errors.Is(err, client.ErrOutcomeUnknown)
	_, silent := errors.AsType[*command.Silent](err)
	if err == nil || silent || errors.Is(err, syscall.EPIPE) || interrupted {
		return
	}
	if a.Format == output.FormatJSON {
		reportJSON(a, err)
		return
	}
	text := err.Error()
	e, ok := errors.AsType[*api.Error](err)
	listed := ok && e.Data != nil && len(e.Data.NotReady) > 0
	if listed { // it repeats the first entry of the list
		first := e.Data.NotReady[0]
		text, _, _ = strings.Cut(text, fmt.Sprintf("; %s: %s", first.Object, first.State))
	}
	// An error while writing this cannot be reported.
	_, _ = fmt.Fprintf(a.Err, "llcli: %s\n", text)
	if l, ok := errors.AsType[*command.Located](err); ok {
		for _, other := range l.Others {
			_, _ = fmt.Fprintf(a.Err, "llcli: %s\n", other.Message)
		}
	}
	if listed {
		for _, object := range e.Data.NotReady {
			_, _ = fmt.Fprintf(a.Err, "  %s is %s%s\n", object.Object, object.State, output.Prefixed(": ", object.Message))
		}
	}
	if e, ok := errors.AsType[*client.Error](err); ok && e.RequestID != "" {
		_, _ = fmt.Fprintf(a.Err, "llcli: to be sure, repeat the command with --request-id %s\n", e.RequestID)
	}
	if _, ok := errors.AsType[*command.UsageError](err); ok {
		_, _ = fmt.Fprintf(a.Err, "llcli: see %s --help\n", cmd.CommandPath())
	}
}

// errorReport is an error in machine-readable form.
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
func reportJSON(a *command.App, err error) {
	r := errorReport{Code: exitCode(err), Message: err.Error()}
	if e, ok := errors.AsType[*api.Error](err); ok {
		r.Reason = e.Reason()
		if e.Data != nil {
			r.Object, r.Field, r.Others, r.NotReady = e.Data.Object, e.Data.Field, e.Data.Others, e.Data.NotReady
		}
	}
	if l, ok := errors.AsType[*command.Located](err); ok {
		r.Others = l.Others
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		r.RequestID = e.RequestID
	}
	line, err := document.Marshal(map[string]errorReport{"error": r})
	if err != nil {
		line = []byte(err.Error())
	}
	_, _ = fmt.Fprintf(a.Err, "%s\n", line) // an error while writing this cannot be reported
}
