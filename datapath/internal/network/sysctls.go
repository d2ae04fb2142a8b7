// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
	"github.com/loxilight/loxilight/datapath/internal/sysctl"
)

// switchFiles are the open sysctls of a namespace.
type switchFiles struct {
	of    *namespace.Handle
	files *sysctl.Files // nil: another program created the namespace
}

func (f *switchFiles) close() {
	f.files.Close()
	*f = switchFiles{}
}

// openSysctls opens the sysctls of a namespace that we created, unless they are open. n.mu is held.
func (n *Network) openSysctls(s *namespace.Handle) error {
	if n.sysctls.of == s && (n.sysctls.files == nil || n.sysctls.files.Complete()) {
		return nil
	}
	n.sysctls.close()
	made, err := madeByUs(n.cfg, s)
	if err == nil && made {
		err = s.Enter(func() (err error) {
			n.sysctls.files, err = sysctl.Open(slices.Sorted(maps.Keys(switchSysctls))...)
			return err
		})
	}
	if err == nil {
		n.sysctls.of = s
	}
	return err
}

// tendSysctls restores the sysctls of a namespace that we created. n.mu is held.
func (n *Network) tendSysctls(s *namespace.Handle) error {
	if err := n.openSysctls(s); err != nil || n.sysctls.files == nil {
		return err // in a namespace that already existed, they belong to the operator
	}
	values, err := n.sysctls.files.Values()
	if err != nil {
		n.sysctls.close()
		return err
	}
	changed := changedSysctls(values)
	if len(changed) == 0 {
		return nil
	}
	err = s.Enter(setSysctls)
	list := strings.Join(changed, ", ")
	if err == nil {
		n.repairs.Add(uint64(len(changed)))
		n.log.Warn("sysctls of the switch were changed by another program and are restored", slog.String("sysctls", list))
		return nil
	}
	// In the sandbox of the systemd unit, /proc/sys is read-only: the unit that creates the
	// namespace also sets them.
	if n.cfg.MakeSwitch != nil && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) && time.Since(n.asked) > askPause {
		n.asked = time.Now()
		err = errors.Join(err, n.cfg.MakeSwitch())
	}
	return fmt.Errorf("another program changed %s in network namespace %q; the switch may fail to forward: restore the values (ip netns exec %s sysctl -w %s): %w",
		list, n.cfg.SwitchNamespace, n.cfg.SwitchNamespace, strings.Join(changed, " "), err)
}

// changedSysctls returns the sysctls whose values differ from the wanted ones.
func changedSysctls(values map[string]string) (changed []string) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] != switchSysctls[name] {
			changed = append(changed, strings.ReplaceAll(name, "/", ".")+"="+switchSysctls[name])
		}
	}
	return changed
}

// setSysctls sets those sysctls of the thread's namespace that differ.
func setSysctls() error {
	for name, value := range switchSysctls {
		path := "/proc/sys/" + name
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
			continue // writing …/forwarding, even the same value, makes the kernel update every device
		}
		err := os.WriteFile(path, []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}

// restoreSysctls sets the sysctls of an existing namespace if we created it.
func restoreSysctls(cfg datapath.Config) error {
	s, err := namespace.Open(cfg.SwitchNamespace)
	if err != nil {
		return err
	}
	defer s.Close()
	if made, err := madeByUs(cfg, s); err != nil || !made {
		return err
	}
	return s.Enter(setSysctls)
}
