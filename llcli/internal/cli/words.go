// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// foreignFlags are other tools' flags, with the flags to use instead.
var foreignFlags = map[string]string{
	"src": "--source", "saddr": "--source", "from": "--source", "dst": "--destination", "daddr": "--destination",
	"sport": "--source-port", "source-ports": "--source-port", "dport": "--port", "ports": "--port", "dports": "--port",
	"proto": "--protocol", "in-interface": "--in", "iif": "--in", "iifname": "--in", "input": "--hook input",
	"out-interface": "--out", "oif": "--out", "oifname": "--out", "output": "--hook output", "hooks": "--hook", "chain": "--hook",
	"jump": "--action", "drop": "--action deny", "deny": "--action deny", "accept": "--action allow", "allow": "--action allow",
	"reject": "--action reject", "gateway": "--via", "gw": "--via", "nexthop": "--via", "dev": "--device", "interface": "--in or --out",
	"blackhole": "--type blackhole", "unreachable": "--type unreachable", "vip": "--frontend", "listen": "--frontend", "server": "--backend",
	"real-server": "--backend", "scheduler": "--algorithm", "port-forward": "--dnat", "redirect": "--dnat", "to-destination": "--to",
	"to-source": "--to", "nat": "--masquerade", "prio": "--priority", "order": "--priority", "members": "--member", "address": "--member",
	"follow": "--watch", "namespace": "--netns", "force": "--overwrite",
}

// foreignShorthands are other tools' one-letter flags.
var foreignShorthands = map[string]string{
	"s": "--source", "d": "--destination", "p": "--protocol", "i": "--in", "j": "--action", "A": "--hook", "w": "--watch", "b": "--backend",
}

// withFlag completes the error about an unknown flag by naming the command's equivalent flag.
func withFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name := unknown.GetSpecifiedName()
	instead := foreignFlags[name]
	if unknown.GetSpecifiedShortnames() != "" {
		instead = foreignShorthands[name]
	}
	own, _, _ := strings.Cut(strings.TrimPrefix(instead, "--"), " ")
	if own == "" || cmd.Flags().Lookup(own) == nil {
		return unknown
	}
	return fmt.Errorf("%w; use %s", unknown, instead)
}
