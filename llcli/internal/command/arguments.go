// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// NoWords rejects arguments, and suggests what to do instead.
func NoWords(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return Usagef("unexpected %q; %s", args[0], hint)
		}
		return nil
	}
}

// NeedWords rejects fewer than n arguments.
func NeedWords(n int, usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return Usagef("missing argument: %s", usage)
		}
		return nil
	}
}

// OneName accepts exactly one argument.
func OneName(command, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return Usagef("%s is missing: llcli %s %s", what, command, what)
		case args[0] == "":
			return Usagef("%s is empty: llcli %s %s", what, command, what)
		case len(args) > 1:
			return Usagef("unexpected %q: llcli %s takes one %s", args[1], command, what)
		}
		return nil
	}
}

// NoCommand rejects words after a command that only has subcommands.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if instead := ForeignCommands[strings.ToLower(args[0])]; instead != "" && !cmd.HasParent() {
		return Usagef("%s; use %s", text, instead)
	}
	return Usagef("%s%s", text, suggestions(cmd, args[0]))
}

// DidYouMean returns a hint that names the words most like text, or an empty string if no word is
// similar.
func DidYouMean(text string, words []string) string {
	root := &cobra.Command{}
	for _, word := range words {
		root.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
	}
	return suggestions(root, text)
}

// suggestions returns a hint that names the commands of cmd most like text, or an empty string if
// no command is similar.
func suggestions(cmd *cobra.Command, text string) string {
	cmd.SuggestionsMinimumDistance = 2
	near := cmd.SuggestionsFor(text)
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// ForeignCommands are other tools' commands, with their replacements.
var ForeignCommands = map[string]string{
	"log": "llcli events --since 1h", "logs": "llcli events --since 1h", "tail": "llcli events",
	"trace": "llcli events drops", "tcpdump": "llcli events drops", "capture": "llcli events drops",
	"ping": "llcli health", "ps": "llcli status", "stats": "llcli counters", "show-drops": "llcli events drops",
	"add": "llcli KIND add NAME, such as llcli service add web", "create": "llcli KIND add NAME, such as llcli service add web",
	"set": "llcli KIND set NAME, such as llcli service set web", "update": "llcli KIND set NAME, such as llcli service set web",
	"allow":  "llcli firewall add NAME --action allow",
	"accept": "llcli firewall add NAME --action allow", "drop": "llcli firewall add NAME --action deny",
	"deny": "llcli firewall add NAME --action deny", "block": "llcli firewall add NAME --action deny",
	"masquerade": "llcli nat add NAME --masquerade", "forward": "llcli nat add NAME --dnat",
	"lb": "llcli service", "vip": "llcli service", "frontend": "llcli service", "backend": "llcli service backend",
	"import": "llcli apply -f FILE", "load": "llcli apply -f FILE", "restore": "llcli replace -f FILE",
	"save": "llcli export (a change is saved when it is made)", "commit": "llcli confirm (a change is in force when it is made)",
	"undo": "llcli rollback --last", "revert": "llcli rollback --last",
	"flush": "llcli connections flush, or llcli delete KIND NAME", "reset": "llcli delete KIND NAME",
	"start": "systemctl start loxilightd", "stop": "systemctl stop loxilightd", "restart": "systemctl restart loxilightd",
	"config": "llcli export", "info": "llcli status", "conntrack": "llcli connections", "sessions": "llcli connections",
	"fdb": "llcli kernel fdb", "neigh": "llcli kernel neighbors", "neighbors": "llcli kernel neighbors", "arp": "llcli kernel neighbors",
}
