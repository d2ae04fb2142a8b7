// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
)

func completionCommand(a *command.App) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion {bash | zsh | fish}",
		Short: "Write the completion script of a shell",
		Long: `Write a script to standard output that makes a shell complete commands, flags and the
names of objects, which it requests from the daemon.

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
			a.Started = true
			switch root := cmd.Root(); args[0] {
			case "bash":
				a.Printf("%s", bashFallback)
				return root.GenBashCompletionV2(a.Printer, true)
			case "zsh":
				return root.GenZshCompletion(a.Printer)
			default:
				return root.GenFishCompletion(a.Printer, true)
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

// oneOf accepts exactly one argument, which must be among words.
func oneOf(question string, words []string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 || !slices.Contains(words, args[0]) {
			return command.Usagef("%s want one of %s", question, strings.Join(words, ", "))
		}
		return nil
	}
}
