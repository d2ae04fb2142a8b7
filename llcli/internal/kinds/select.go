// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

// Selection chooses objects of a kind by flags.
type Selection struct {
	Owner  string
	Labels map[string]string
}

// Bind adds the flags to a command.
func (o *Selection) Bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.Owner, "owner", "", "only objects of this `OWNER`: "+api.OwnerCLI+", "+api.OwnerFile+" or another")
	o.BindLabels(cmd)
	command.Must(cmd.RegisterFlagCompletionFunc("owner", cobra.FixedCompletions(api.Owners, cobra.ShellCompDirectiveNoFileComp)))
}

// BindLabels adds the flag for labels alone.
func (o *Selection) BindLabels(cmd *cobra.Command) {
	cmd.Flags().StringToStringVarP(&o.Labels, "labels", "l", nil, "only objects with these labels: `KEY=VALUE,...`")
	command.HideDefault(cmd.Flags(), "labels")
	command.Must(cmd.RegisterFlagCompletionFunc("labels", cobra.NoFileCompletions))
}

// RefArgs reads KIND [NAME…] or KIND/NAME….
func RefArgs(args []string) (string, []string, error) {
	kind, name, slash := strings.Cut(args[0], "/")
	if !slash {
		return NameOf(kind), args[1:], nil
	}
	kind = NameOf(kind)
	names := []string{name}
	for _, arg := range args[1:] {
		k, n, slash := strings.Cut(arg, "/")
		if !slash || NameOf(k) != kind {
			return "", nil, command.Usagef("%q: want %s/NAME, as in %q", arg, kind, args[0])
		}
		names = append(names, n)
	}
	return kind, names, nil
}

// RefOf names an object.
func RefOf(o *api.Object) api.ObjectRef { return api.ObjectRef{Kind: o.Kind, Name: o.Name} }

// Matches reports whether an object has the requested labels.
func (o *Selection) Matches(object *api.Object) bool {
	for key, value := range o.Labels {
		if object.Labels[key] != value {
			return false
		}
	}
	return true
}
