// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/spf13/cobra"

// topicCommands are pages of help that are not commands. In the manual they are sections of llcli's
// own page.
func topicCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "exit-status",
			Short: "What the exit codes mean",
			Long: `  0  done
  1  refused by the daemon, or failed
  2  the command line is wrong
  3  the daemon is not running, not for this user, or does not answer
  4  done and durable, but not everything was Ready within the time of --wait

Where a change was sent and no answer came, the code is 3 and the message says that
its outcome is unknown. To ask again with --request-id and the id that the message
names does not make the change twice.`,
		},
		{
			Use:   "environment",
			Short: "Variables and files that llcli uses",
			Long: `  LOXILIGHT_SOCKET    the daemon's control socket, as --socket
  LOXILIGHT_INSTANCE  the instance of the daemon, as --instance
  VISUAL, EDITOR      the editor of llcli edit
  NO_COLOR            if set, tables have no colours

  /run/loxilight/control.sock  the daemon's control socket: root and members of
                               group loxilight-admin may change, members of group
                               loxilight may read
  /etc/loxilight/conf.d/       files of objects, which the daemon reads at its start
                               and on llcli reload`,
		},
	}
}
