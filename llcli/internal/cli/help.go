// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/local"
	"github.com/loxilight/loxilight/llcli/internal/view"
	"github.com/spf13/cobra"
)

// addCommands adds all commands, in the groups in which help shows them.
func addCommands(a *command.App, root *cobra.Command, isUsed func(words ...string) bool) {
	groups := []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"objects", "Configuration:", append(changes.Commands(a), nounCommands(a, isUsed)...)},
		{"state", "Status:", append(view.Commands(a), changes.ChangesCommand(a))},
		{"machine", "Host:", local.Commands(a)},
		{"help", "About llcli:", []*cobra.Command{
			view.ExplainCommand(a), versionCommand(a), completionCommand(a), manCommand(a),
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

// minWrap and maxWrap limit the width of help: narrower text is unreadable, and so are longer
// lines.
const minWrap, maxWrap = 60, 110

// wrapUsage fits the help of flags to the terminal.
func wrapUsage(root *cobra.Command, width int) {
	if width == 0 {
		width = 80
	}
	wrapped := fmt.Sprintf("FlagUsagesWrapped %d", min(max(width, minWrap), maxWrap))
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", wrapped))
}
