// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func owner(info fs.FileInfo) string {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d:%d", stat.Uid, stat.Gid)
	}
	return "?"
}

// machineParts are facts about the kernel and the machine.
func (b *writer) machineParts() []part {
	var parts []part
	for _, f := range []struct{ name, path string }{
		{"kernel/version.txt", "/proc/version"},
		{"kernel/cmdline.txt", "/proc/cmdline"},
		{"kernel/meminfo.txt", "/proc/meminfo"},
		{"kernel/mounts.txt", "/proc/self/mounts"},
		{"kernel/locks.txt", "/proc/locks"},
		{"kernel/softnet.txt", "/proc/net/softnet_stat"},
		{"kernel/snmp.txt", "/proc/net/snmp"},
		{"kernel/netstat.txt", "/proc/net/netstat"},
		{"kernel/cpus.txt", "/sys/devices/system/cpu/possible"},
		{"os-release.txt", "/etc/os-release"},
	} {
		parts = append(parts, part{name: f.name, what: f.path, get: readFile(b.path(f.path))})
	}
	return append(parts,
		part{name: "kernel/config.txt", what: "/proc/config.gz", get: kernelConfig(b.path("/proc/config.gz"))},
		part{name: "kernel/sysctl.txt", what: "relevant kernel parameters", get: b.sysctls},
		part{name: "unit/cgroup.txt", what: "memory and processor usage of the unit", get: b.cgroup},
	)
}

func (b *writer) path(path string) string { return filepath.Join(b.o.Root, path) }

// sysctls are the parameters on which the data plane and the kernel's own forwarding depend; *
// stands for each device.
func (b *writer) sysctls(context.Context) ([]byte, error) {
	var out bytes.Buffer
	for _, pattern := range []string{
		"kernel/osrelease", "kernel/unprivileged_bpf_disabled", "net/core/bpf_jit_*", "net/core/netdev_*", "net/core/rmem_max", "net/core/wmem_max",
		"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/ip_nonlocal_bind", "net/ipv4/fib_multipath_*",
		"net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/accept_local", "net/ipv4/conf/*/route_localnet",
		"net/ipv4/conf/*/arp_ignore", "net/ipv4/conf/*/arp_announce", "net/ipv4/conf/*/send_redirects",
		"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/accept_ra",
		"net/ipv4/neigh/default/gc_*", "net/ipv6/neigh/default/gc_*", "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_be_liberal",
	} {
		paths, err := filepath.Glob(b.path("/proc/sys/" + pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err == nil {
				name, _ := filepath.Rel(b.path("/proc/sys"), path) // path is below it
				fmt.Fprintf(&out, "%s = %s\n", strings.NewReplacer("/", ".", ".", "/").Replace(name), strings.TrimSpace(string(text)))
			}
		}
	}
	return out.Bytes(), nil
}

// cgroup reads the counters and limits of the unit's control group.
func (b *writer) cgroup(ctx context.Context) ([]byte, error) {
	text, err := b.output("systemctl", "show", b.o.Unit, "--property=ControlGroup", "--value")(ctx)
	if err != nil {
		return nil, err
	}
	group := strings.TrimSpace(string(text))
	if group == "" {
		return nil, errors.New("the unit does not run")
	}
	var out bytes.Buffer
	for _, file := range []string{"memory.current", "memory.max", "memory.peak", "memory.events", "memory.stat", "cpu.stat", "pids.current", "io.stat"} {
		text, err := os.ReadFile(b.path(filepath.Join("/sys/fs/cgroup", group, file)))
		if err == nil {
			fmt.Fprintf(&out, "# %s\n%s", file, text)
		}
	}
	return out.Bytes(), nil
}
