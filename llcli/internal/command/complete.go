// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completionTimeout bounds how long a press of the tab key may take.
const completionTimeout = time.Second

// MaxCompletions is the maximum number of names offered to a shell.
const MaxCompletions = 500

// Completer offers words for an argument or the value of a flag.
type Completer = cobra.CompletionFunc

// CompleteDevices offers the network devices of the host.
func (a *App) CompleteDevices(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	entries, _ := os.ReadDir(filepath.Join(a.Root, "/sys/class/net")) // none: nothing to offer
	var names []string
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, prefix) && name != "lo" {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// Ask calls f with a connection for a completion. If the daemon does not answer, nothing is
// offered: a completion must not print errors.
func (a *App) Ask(ctx context.Context, f func(ctx context.Context, d Daemon) error) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	d, err := a.Connect(ctx)
	if err != nil {
		return
	}
	_ = f(ctx, d)
	_ = d.Close()
}
