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
  1  rejected by the daemon, or failed
  2  the command line is wrong
  3  the daemon is not running, does not accept this user, or does not answer
  4  done and durable, but not everything was Ready within the time of --wait

If a change was sent and no reply arrived, the code is 3, and the message says that the
outcome is unknown and contains a request id. Repeating the command with --request-id and
this id does not make the change twice.`,
		},
		{
			Use:   "environment",
			Short: "Variables and files that llcli uses",
			Long: `  LOXILIGHT_SOCKET    the daemon's control socket, like --socket
  LOXILIGHT_INSTANCE  the instance of the daemon, like --instance
  VISUAL, EDITOR      the editor for llcli edit
  NO_COLOR            if set, tables have no colours

  /run/loxilight/control.sock  the daemon's control socket: root and members of the
                               group loxilight-admin may make changes, members of
                               the group loxilight may read
  /etc/loxilight/conf.d/       object files, which the daemon reads when it starts
                               and on llcli reload`,
		},
	}
}
