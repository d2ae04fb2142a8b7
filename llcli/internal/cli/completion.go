// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// completionTimeout bounds how long a press of the tab key may take.
const completionTimeout = time.Second

// errEnough ends a list that is long enough.
var errEnough = errors.New("enough")

// maxCompletions is how many names a shell gets offered.
const maxCompletions = 500

type completer = cobra.CompletionFunc

func (a *app) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion {bash | zsh | fish}",
		Short: "Write the completion script of a shell",
		Long: `Write a script to the standard output that makes a shell complete commands, flags
and the names of objects, which it asks the daemon for.

bash:
  llcli completion bash > /etc/bash_completion.d/llcli
zsh:
  llcli completion zsh > "${fpath[1]}/_llcli"
fish:
  llcli completion fish > ~/.config/fish/completions/llcli.fish`,
		Example:               "  . <(llcli completion bash)",
		Args:                  oneOf("which shell?", shells),
		ValidArgs:             shells,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.started = true
			switch root := cmd.Root(); args[0] {
			case "bash":
				a.printf("%s", bashFallback)
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		},
	}
}

// bashFallback defines the functions of the package bash-completion that cobra's script uses, for
// machines without it.
const bashFallback = `# Without the package bash-completion: words are split at blanks only.
if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    _get_comp_words_by_ref() {
        local line="${COMP_LINE:0:COMP_POINT}"
        read -r -a words <<<"$line"
        [[ $line == *[[:space:]] ]] && words+=("")
        cword=$((${#words[@]} - 1))
        cur="${words[cword]}"
        prev="${words[cword - 1]}"
    }
fi
if ! declare -F __ltrim_colon_completions >/dev/null 2>&1; then
    __ltrim_colon_completions() {
        [[ $1 == *:* && $COMP_WORDBREAKS == *:* ]] || return 0
        local head="${1%"${1##*:}"}" i=${#COMPREPLY[@]}
        while ((i-- > 0)); do COMPREPLY[i]="${COMPREPLY[i]#"$head"}"; done
    }
fi
`

// completeDevices offers the network devices of the host.
func (a *app) completeDevices(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	entries, _ := os.ReadDir(filepath.Join(a.Root, "/sys/class/net")) // none: nothing to offer
	var names []string
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, prefix) && name != "lo" {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// oneOf wants one argument that is among words.
func oneOf(question string, words []string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || !slices.Contains(words, args[0]) {
			return usagef("%s want one of %s", question, strings.Join(words, ", "))
		}
		return nil
	}
}

// ask calls f with a connection for a completion. If the daemon does not answer, nothing is
// offered: a completion must not print errors.
func (a *app) ask(ctx context.Context, f func(ctx context.Context, d Daemon) error) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	d, err := a.dial(ctx)
	if err != nil {
		return
	}
	_ = f(ctx, d)
	_ = d.Close()
}

// names returns the names of a kind's objects that begin with prefix and are not in args, with
// descriptions.
func (a *app) names(ctx context.Context, kind, prefix string, args []string) []string {
	var found []string
	a.ask(ctx, func(ctx context.Context, d Daemon) error {
		_, err := a.list(ctx, d, api.ListParams{Kind: kind}, func(objects []api.Object) error {
			for i := range objects {
				name := objects[i].Name
				if strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
					found = append(found, cobra.CompletionWithDesc(name, hint(&objects[i])))
				}
			}
			if len(found) >= maxCompletions {
				return errEnough
			}
			return nil
		})
		return err
	})
	return found
}

// hint describes an object in a few words.
func hint(o *api.Object) string {
	switch o.Kind {
	case api.KindService:
		var spec api.ServiceSpec
		decode(o, &spec, &struct{}{})
		return strings.Join(spec.Frontends, " ")
	case api.KindInterface:
		var spec api.InterfaceSpec
		decode(o, &spec, &struct{}{})
		return or(spec.Role, "uplink") + " " + or(spec.Device, spec.Address)
	}
	k := findKind(o.Kind)
	if k == nil {
		return ""
	}
	var words []string
	for _, c := range k.cells(o, false) {
		words = append(words, c.text)
	}
	return strings.Join(words, " ")
}

// completeNames offers the names of a kind's objects, each once.
func (a *app) completeNames(kind string) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.names(cmd.Context(), kind, prefix, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeName offers the name of one object of a kind.
func (a *app) completeName(kind string) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.names(cmd.Context(), kind, prefix, nil), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRefs offers a kind, and then the names of so many objects of it; 0: any number.
func (a *app) completeRefs(limit int) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0 && strings.Contains(prefix, "/"):
			return a.completeRef(cmd, nil, prefix)
		case len(args) == 0:
			return kindWords(prefix), cobra.ShellCompDirectiveNoFileComp
		case limit > 0 && len(args) > limit:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.names(cmd.Context(), kindOf(args[0]), prefix, args[1:]), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeRef offers KIND/NAME.
func (a *app) completeRef(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	word, name, slash := strings.Cut(prefix, "/")
	if !slash {
		words := kindWords(prefix)
		for i := range words {
			text, description, _ := strings.Cut(words[i], "\t")
			words[i] = cobra.CompletionWithDesc(text+"/", description)
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	found := a.names(cmd.Context(), kindOf(word), name, nil)
	for i := range found {
		found[i] = word + "/" + found[i]
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// kindWords returns the words for kinds that begin with prefix; without a prefix only the first
// word of each kind.
func kindWords(prefix string) []string {
	var words []string
	for i := range kinds {
		for _, word := range append(kinds[i].words[:2:2], kinds[i].name) {
			if prefix != "" && strings.HasPrefix(word, prefix) || prefix == "" && word == kinds[i].words[0] {
				words = append(words, cobra.CompletionWithDesc(word, "objects of kind "+kinds[i].name))
			}
		}
	}
	return words
}

// backends returns the addresses of backends that begin with prefix, of a Service, or of all
// Services if service is empty.
func (a *app) backends(ctx context.Context, service, prefix string, args []string) []string {
	var found []string
	add := func(objects []api.Object) error {
		for i := range objects {
			for _, address := range backendsOf(&objects[i]) {
				if strings.HasPrefix(address, prefix) && !slices.Contains(args, address) {
					found = append(found, address)
				}
			}
		}
		if len(found) >= maxCompletions {
			return errEnough
		}
		return nil
	}
	a.ask(ctx, func(ctx context.Context, d Daemon) error {
		if service == "" {
			_, err := a.list(ctx, d, api.ListParams{Kind: api.KindService}, add)
			return err
		}
		object, err := a.object(ctx, d, api.KindService, service)
		if err != nil {
			return err
		}
		return add([]api.Object{object})
	})
	slices.Sort(found)
	return slices.Compact(found)
}

// completeBackends offers backends of the Service that is named elsewhere on
// the command line.
func (a *app) completeBackends(service func(args []string) string) completer {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return a.backends(cmd.Context(), service(args), prefix, nil), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeServiceBackends offers a Service, and then its backends.
func (a *app) completeServiceBackends(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.names(cmd.Context(), api.KindService, prefix, nil), cobra.ShellCompDirectiveNoFileComp
	}
	return a.backends(cmd.Context(), args[0], prefix, args[1:]), cobra.ShellCompDirectiveNoFileComp
}
