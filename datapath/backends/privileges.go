// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilities are the capabilities that a data plane in the kernel needs.
var capabilities = []struct {
	bit  int
	name string
}{
	{unix.CAP_BPF, "CAP_BPF"},             // maps, programs
	{unix.CAP_PERFMON, "CAP_PERFMON"},     // the pointer arithmetic of the programs
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, // attaching them
}

// checkPrivileges names the capabilities that the process lacks. Without it the
// first thing refused would be some map, with no more than "operation not permitted".
func checkPrivileges() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	has := func(bit int) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var missing []string
	for _, c := range capabilities {
		// CAP_SYS_ADMIN stands for the first two, but not for the last.
		if !has(c.bit) && (c.bit == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this process (user %d) lacks %s: run loxilightd as root, or by its systemd unit",
			os.Geteuid(), strings.Join(missing, ", "))
	}
	return nil
}
