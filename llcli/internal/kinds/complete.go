// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

// objectNames returns the names of a kind's objects that begin with prefix and are not in args,
// with descriptions.
func objectNames(ctx context.Context, a *command.App, kind, prefix string, args []string) []string {
	var found []string
	a.Ask(ctx, func(ctx context.Context, d command.Daemon) error {
		_, err := a.List(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
			for i := range objects {
				name := objects[i].Name
				if strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
					found = append(found, cobra.CompletionWithDesc(name, hint(&objects[i])))
				}
			}
			if len(found) >= command.MaxCompletions {
				return command.ErrEnough
			}
			return nil
		})
		return err
	})
	return found
}

// hint describes an object in a few words.
func hint(o *api.Object) string {
	k := Find(o.Kind)
	if k == nil {
		return ""
	}
	if k.hint != nil {
		return k.hint(o)
	}
	var words []string
	for _, c := range k.Cells(o, false) {
		words = append(words, c.Text)
	}
	return strings.Join(words, " ")
}

// CompleteNames offers the names of a kind's objects, each once.
func CompleteNames(a *command.App, kind string) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return objectNames(cmd.Context(), a, kind, prefix, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteName offers the name of one object of a kind.
func CompleteName(a *command.App, kind string) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return objectNames(cmd.Context(), a, kind, prefix, nil), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteRefs offers a kind, and then the names of up to limit objects of that kind, or of any
// number if limit is 0.
func CompleteRefs(a *command.App, limit int) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0 && strings.Contains(prefix, "/"):
			return CompleteRef(a)(cmd, nil, prefix)
		case len(args) == 0:
			return Words(prefix), cobra.ShellCompDirectiveNoFileComp
		case limit > 0 && len(args) > limit:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return objectNames(cmd.Context(), a, NameOf(args[0]), prefix, args[1:]), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteRef offers KIND/NAME.
func CompleteRef(a *command.App) command.Completer {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		word, name, slash := strings.Cut(prefix, "/")
		if !slash {
			words := Words(prefix)
			for i := range words {
				text, description, _ := strings.Cut(words[i], "\t")
				words[i] = cobra.CompletionWithDesc(text+"/", description)
			}
			return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		found := objectNames(cmd.Context(), a, NameOf(word), name, nil)
		for i := range found {
			found[i] = word + "/" + found[i]
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// Words returns the names of kinds, singular and plural, that begin with prefix; one name for each
// kind if prefix is empty.
func Words(prefix string) []string {
	var words []string
	for i := range All {
		for _, word := range append(All[i].Words[:2:2], All[i].Name) {
			if prefix != "" && strings.HasPrefix(word, prefix) || prefix == "" && word == All[i].Words[0] {
				words = append(words, cobra.CompletionWithDesc(word, "objects of kind "+All[i].Name))
			}
		}
	}
	return words
}

// backendAddresses returns the addresses that begin with prefix, of the backends of one Service, or
// of all Services if service is empty.
func backendAddresses(ctx context.Context, a *command.App, service, prefix string, args []string) []string {
	var found []string
	add := func(objects []api.Object) error {
		for i := range objects {
			for _, address := range backendsOf(&objects[i]) {
				if strings.HasPrefix(address, prefix) && !slices.Contains(args, address) {
					found = append(found, address)
				}
			}
		}
		if len(found) >= command.MaxCompletions {
			return command.ErrEnough
		}
		return nil
	}
	a.Ask(ctx, func(ctx context.Context, d command.Daemon) error {
		if service == "" {
			_, err := a.List(ctx, d, api.ListParams{Kind: api.KindService}, add)
			return err
		}
		object, err := a.Object(ctx, d, api.KindService, service)
		if err != nil {
			return err
		}
		return add([]api.Object{object})
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// CompleteBackends offers backends of the Service that is named elsewhere on
// the command line.
func CompleteBackends(a *command.App, service func(args []string) string) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return backendAddresses(cmd.Context(), a, service(args), prefix, nil), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteServiceBackends offers a Service, and then its backends.
func CompleteServiceBackends(a *command.App) command.Completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return objectNames(cmd.Context(), a, api.KindService, prefix, nil), cobra.ShellCompDirectiveNoFileComp
		}
		return backendAddresses(cmd.Context(), a, args[0], prefix, args[1:]), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeGroups offers address groups as rules refer to them and, if local is set, the word local.
func completeGroups(a *command.App, local bool) cobra.CompletionFunc {
	const head, word = "group:", "local"
	return func(cmd *cobra.Command, _ []string, prefix string) (found []string, _ cobra.ShellCompDirective) {
		name, isGroup := strings.CutPrefix(prefix, head)
		if !isGroup {
			name = "" // the beginning of the word itself
		}
		if isGroup || strings.HasPrefix(head, prefix) {
			for _, group := range objectNames(cmd.Context(), a, api.KindAddressGroup, name, nil) {
				found = append(found, head+group)
			}
		}
		if local && strings.HasPrefix(word, prefix) {
			found = append(found, cobra.CompletionWithDesc(word, "the addresses of the node"))
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
