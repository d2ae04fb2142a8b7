// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// state is a snapshot of the machine: a line of text for each item, by its name.
type state map[string]string

// network returns all state that affects packets: devices, addresses, routes, rules, qdiscs,
// filters, programs, sysctls, other programs' tables, namespaces.
func network(t *testing.T) state {
	t.Helper()
	s := make(state)
	for _, command := range []string{
		"ip -o -d link", "ip -o address", "ip -4 route show table all", "ip -6 route show table all",
		"ip -4 rule", "ip -6 rule", "tc qdisc show", "nft list ruleset",
	} {
		args := strings.Fields(command)
		for i, line := range strings.Split(strings.TrimSpace(run(t, args[0], args[1:]...)), "\n") {
			s[fmt.Sprintf("%s: %d", command, i)] = line
		}
	}
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		for _, side := range []string{"ingress", "egress"} {
			// A device without a clsact qdisc has no filters, and tc fails.
			out, _ := try("tc", "filter", "show", "dev", d.Name, side)
			s["filters: "+d.Name+" "+side] = out
		}
		s.programs("tcx ingress "+d.Name, link.QueryOptions{Target: d.Index, Attach: ebpf.AttachTCXIngress})
		s.programs("tcx egress "+d.Name, link.QueryOptions{Target: d.Index, Attach: ebpf.AttachTCXEgress})
	}
	if cgroup, err := os.Open("/sys/fs/cgroup"); err == nil {
		for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg} {
			s.programs(fmt.Sprintf("cgroup %v", at), link.QueryOptions{Target: int(cgroup.Fd()), Attach: at})
		}
		cgroup.Close()
	}
	s.tree("/proc/sys", func(path string, _ fs.FileInfo) string {
		b, _ := os.ReadFile(path) // some can only be written
		return string(b)
	})
	s.tree("/run/netns", func(string, fs.FileInfo) string { return "exists" })
	maps.DeleteFunc(s, func(name, _ string) bool { return volatile.MatchString(name) })
	return s
}

// volatile are kernel parameters that change by themselves.
var volatile = regexp.MustCompile(`^/proc/sys/(fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/.*|binfmt_misc/.*)|` +
	`kernel/(random/.*|ns_last_pid|pty/nr|sched_domain/.*|cad_pid|unprivileged_userns_clone)|net/netfilter/nf_conntrack_count|.*/mc_forwarding|vm/stat_refresh)$`)

func (s state) programs(hook string, o link.QueryOptions) {
	r, err := link.QueryPrograms(o)
	if err != nil {
		return // this kernel has no such hook
	}
	for _, p := range r.Programs {
		s[fmt.Sprintf("program: %s %d", hook, p.ID)] = "attached"
	}
}

// objectsOfOurs returns the BPF programs and maps in the whole kernel that have our names.
func objectsOfOurs(t *testing.T) state {
	t.Helper()
	s := make(state)
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			if info, err := p.Info(); err == nil && strings.HasPrefix(info.Name, "ll_") {
				s[fmt.Sprintf("program %d", id)] = info.Name
			}
			p.Close()
		}
	}
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			if info, err := m.Info(); err == nil && strings.HasPrefix(info.Name, "ll_") {
				s[fmt.Sprintf("map %d", id)] = info.Name
			}
			m.Close()
		}
	}
	return s
}

// tree adds the files below a directory.
func (s state) tree(root string, value func(path string, info fs.FileInfo) string) {
	_ = filepath.Walk(root, func(path string, info fs.FileInfo, err error) error { // skip unreadable files
		if err == nil && !info.IsDir() {
			s[path] = value(path, info)
		}
		return nil
	})
}

// elsewhere are directories that are not the package's, or whose contents change by themselves, and
// the records that dpkg and systemd keep of a removed package.
var elsewhere = regexp.MustCompile(`^/(proc|sys|dev|mnt|tmp|root|var/tmp|var/log|var/cache|run|lib/modules|usr/lib/modules)$|` +
	`^/var/lib/(dpkg/(status-old|available|lock.*|triggers/.*|info/format)|systemd/(random-seed|timers.*|catalog.*))$|` +
	`^/etc/((passwd|group|shadow|gshadow)-|\.pwd\.lock|machine-id|resolv\.conf|ld\.so\.cache)$`)

// files returns all files of the system, including places where the package might leave some.
func files(t *testing.T) state {
	t.Helper()
	s := make(state)
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case elsewhere.MatchString(path):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case err != nil:
			return nil // it was deleted
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		owner := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s of %d:%d", info.Mode(), owner.Uid, owner.Gid)
		if info.Mode().IsRegular() {
			line += fmt.Sprintf(", %d bytes", info.Size())
		}
		s[path] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/proc/self/mounts"} {
		for line := range strings.Lines(read(t, path)) {
			s[path+": "+strings.TrimSpace(line)] = "exists"
		}
	}
	for _, dir := range []string{"/sys/fs/bpf", "/run/loxilight", "/run/systemd/system", "/run/systemd/network"} {
		s.tree(dir, func(_ string, info fs.FileInfo) string { return info.Mode().String() })
	}
	return s
}

// diff lists the differences, sorted.
func diff(before, after state) (lines []string) {
	for name, was := range before {
		if is, there := after[name]; !there {
			lines = append(lines, fmt.Sprintf("gone: %s: %s", name, was))
		} else if is != was {
			lines = append(lines, fmt.Sprintf("changed: %s: was %q, is %q", name, was, is))
		}
	}
	for name, is := range after {
		if _, there := before[name]; !there {
			lines = append(lines, fmt.Sprintf("new: %s: %s", name, is))
		}
	}
	slices.Sort(lines)
	return lines
}

// expectSame fails the test if anything is not as before.
func expectSame(t *testing.T, what string, before, after state) {
	t.Helper()
	if len(before) < 100 {
		t.Errorf("%s: only %d things were looked at", what, len(before))
	}
	lines := diff(before, after)
	if len(lines) > 40 {
		lines = append(lines[:40], fmt.Sprintf("and %d more", len(lines)-40))
	}
	if len(lines) > 0 {
		t.Errorf("%s:\n%s", what, strings.Join(lines, "\n"))
	}
}
