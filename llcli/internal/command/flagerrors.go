// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"errors"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagPath is a flag and the field of the spec that it sets.
type FlagPath struct{ Flag, Path string }

// InFlags rewrites an error from the daemon about a field of a spec, so that it names the flag for
// that field. An invalid value then counts as a mistake on the command line.
func InFlags(err error, paths []FlagPath, given *pflag.FlagSet) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Data == nil {
		return err
	}
	flag := flagOf(paths, strings.TrimPrefix(e.Data.Field, "spec."), given)
	if flag == "" {
		return err
	}
	text := strings.TrimPrefix(e.Error(), e.Data.Object+": ")
	text = strings.TrimPrefix(text, e.Data.Field+": ")
	for _, p := range paths { // the rest of the text may name other fields
		text = strings.ReplaceAll(text, "spec."+p.Path+" ", "--"+p.Flag+" ")
	}
	return ArgumentError(err, e, "--"+flag+": "+text)
}

// flagOf returns the flag for a field, preferably one that was given, or an empty string if no flag
// sets the field.
func flagOf(paths []FlagPath, field string, given *pflag.FlagSet) string {
	field, _, _ = strings.Cut(field, "[")
	for ; field != ""; field = field[:max(0, strings.LastIndexByte(field, '.'))] {
		first := ""
		for _, p := range paths {
			if p.Path != field {
				continue
			}
			for _, flag := range []string{p.Flag, "add-" + p.Flag, "remove-" + p.Flag} {
				if given.Changed(flag) {
					return flag
				}
			}
			first = cmp.Or(first, p.Flag)
		}
		if first != "" {
			return first
		}
	}
	return ""
}

// flagNamed is an error from the daemon in terms of the command line.
type flagNamed struct {
	text string
	err  error
}

func (e *flagNamed) Error() string { return e.text }
func (e *flagNamed) Unwrap() error { return e.err }

// ArgumentError returns err, which contains e, in terms of the command line. It is a usage error if
// the daemon calls the value invalid, but not, for instance, if it conflicts with the daemon's
// objects.
func ArgumentError(err error, e *api.Error, text string) error {
	named := &flagNamed{text, err}
	if e.Reason() != api.ReasonInvalid {
		return named
	}
	return &UsageError{named}
}

// inArguments rewrites an error from the daemon about a parameter of a method, so that it names the
// flag or argument of cmd. Errors about objects in files are left unchanged.
func inArguments(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*flagNamed](err); ok {
		return err
	}
	e, ok := errors.AsType[*api.Error](err)
	if _, inFile := errors.AsType[*Located](err); !ok || inFile || e.Data == nil || cmd.Flags().Changed("filename") {
		return err
	}
	field := e.Data.Field
	text := strings.TrimPrefix(e.Error(), e.Data.Object+": ")
	text = strings.TrimPrefix(text, field+": ")
	last := field[strings.LastIndexByte(field, '.')+1:]
	switch {
	case last != "" && cmd.Flags().Changed(last):
		return ArgumentError(err, e, "--"+last+": "+text)
	case last == "kind", field == "name":
		return ArgumentError(err, e, last+": "+text)
	}
	return err
}
