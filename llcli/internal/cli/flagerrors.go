// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagPath is a flag and the field of the spec that it sets.
type flagPath struct{ flag, path string }

// inFlags names, in an error of the daemon about a field of a spec, the flag of the field instead.
// An invalid value is then a mistake on the command line.
func inFlags(err error, paths []flagPath, given *pflag.FlagSet) error {
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
		text = strings.ReplaceAll(text, "spec."+p.path+" ", "--"+p.flag+" ")
	}
	return argumentError(err, e, "--"+flag+": "+text)
}

// flagOf returns the flag of a field, preferably one that was given; empty: no flag sets it.
func flagOf(paths []flagPath, field string, given *pflag.FlagSet) string {
	field, _, _ = strings.Cut(field, "[")
	for ; field != ""; field = field[:max(0, strings.LastIndexByte(field, '.'))] {
		first := ""
		for _, p := range paths {
			if p.path != field {
				continue
			}
			for _, flag := range []string{p.flag, "add-" + p.flag, "remove-" + p.flag} {
				if given.Changed(flag) {
					return flag
				}
			}
			first = or(first, p.flag)
		}
		if first != "" {
			return first
		}
	}
	return ""
}

// flagNamed is an error of the daemon in the words of the command line.
type flagNamed struct {
	text string
	err  error
}

func (e *flagNamed) Error() string { return e.text }
func (e *flagNamed) Unwrap() error { return e.err }

// argumentError is err, which contains e, in the words of the command line. It is a mistake there
// if the daemon calls the value invalid; a conflict with the daemon's objects, for instance, is not.
func argumentError(err error, e *api.Error, text string) error {
	named := &flagNamed{text, err}
	if e.Reason() != api.ReasonInvalid {
		return named
	}
	return &usageError{named}
}

// inArguments names, in an error of the daemon about a parameter of a method, the flag or argument
// of cmd instead. Errors about objects of files are left as they are.
func inArguments(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*flagNamed](err); ok {
		return err
	}
	e, ok := errors.AsType[*api.Error](err)
	if _, inFile := errors.AsType[*located](err); !ok || inFile || e.Data == nil || cmd.Flags().Changed("filename") {
		return err
	}
	field := e.Data.Field
	text := strings.TrimPrefix(e.Error(), e.Data.Object+": ")
	text = strings.TrimPrefix(text, field+": ")
	last := field[strings.LastIndexByte(field, '.')+1:]
	switch {
	case last != "" && cmd.Flags().Changed(last):
		return argumentError(err, e, "--"+last+": "+text)
	case last == "kind", field == "name":
		return argumentError(err, e, last+": "+text)
	}
	return err
}
