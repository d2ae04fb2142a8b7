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
	{unix.CAP_PERFMON, "CAP_PERFMON"},     // pointer arithmetic in the programs
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, // attaching programs
}

// checkPrivileges returns an error that names the missing capabilities. Otherwise the creation of
// some map would fail with only "operation not permitted".
func checkPrivileges() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	has := func(bit int) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	var missing []string
	for _, c := range capabilities {
		// CAP_SYS_ADMIN includes the first two, but not the last.
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
