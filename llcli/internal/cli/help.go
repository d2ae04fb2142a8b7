// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addCommands adds all commands, in the groups that help shows them in.
func (a *app) addCommands(root *cobra.Command) {
	objects := []*cobra.Command{
		a.applyCommand(), a.deleteCommand(), a.diffCommand(), a.editCommand(), a.replaceCommand(), a.exportCommand(), a.reloadCommand(),
		a.confirmCommand(), a.historyCommand(), a.rollbackCommand(),
		a.serviceCommand(), a.interfaceCommand(),
	}
	for _, n := range nouns() {
		objects = append(objects, a.fieldsCommand(n))
	}
	groups := []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"objects", "Configuration:", objects},
		{"state", "Status:", []*cobra.Command{
			a.getCommand(), a.describeCommand(), a.kernelCommand(), a.connectionsCommand(), a.countersCommand(), a.topCommand(), a.eventsCommand(), a.changesCommand(),
			a.statusCommand(), a.healthCommand(), a.waitCommand(), a.k8sCommand(),
		}},
		{"machine", "Host:", []*cobra.Command{
			a.doctorCommand(), a.bundleCommand(), a.preflightCommand(), a.detachCommand(), a.cniCommand(),
		}},
		{"help", "About llcli:", []*cobra.Command{
			a.explainCommand(), a.versionCommand(), a.completionCommand(), a.manCommand(),
		}},
	}
	for _, group := range groups {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.id
		}
		root.AddCommand(group.commands...)
	}
	root.SetHelpCommandGroupID("help")
	root.AddCommand(topicCommands()...)
}

// minWrap and maxWrap bound the width of help: less is unreadable, and so are
// longer lines.
const minWrap, maxWrap = 60, 110

// wrapUsage has the help of flags fit the terminal.
func wrapUsage(root *cobra.Command, width int) {
	if width == 0 {
		width = 80
	}
	wrapped := fmt.Sprintf("FlagUsagesWrapped %d", min(max(width, minWrap), maxWrap))
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", wrapped))
}

// hideDefault removes meaningless defaults of flags from the help.
func hideDefault(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flag := flags.Lookup(name)
		switch flag.Value.Type() {
		case "int", "int64":
			flag.DefValue = "0"
		default:
			flag.DefValue = ""
		}
	}
}
