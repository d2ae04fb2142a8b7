// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The oldest kernel that can load the programs, which need bpf_loop, and the oldest tested kernel.
var (
	oldestKernel = [2]int{5, 17}
	testedKernel = [2]int{6, 1}
)

func (x *examiner) checkKernel() {
	release, ok := x.read("/proc/sys/kernel/osrelease")
	if !ok {
		x.hidden("kernel release", errors.New("/proc/sys/kernel/osrelease cannot be read"))
	}
	x.checkRelease(release)
	x.checkJIT()
	if _, err := os.Stat(x.path("/sys/kernel/btf/vmlinux")); errors.Is(err, fs.ErrNotExist) {
		x.find("note", "kernel.btf", "kernel "+release, words{
			what: "has no type information (/sys/kernel/btf/vmlinux)",
			why:  "the programs work without it; bpftool and tracing tools show less about them",
			do:   "nothing, or a kernel with CONFIG_DEBUG_INFO_BTF",
		}, nil)
	}
	x.checkBPFFS()
}

func (x *examiner) checkRelease(release string) {
	v, ok := kernelVersion(release)
	older := func(than [2]int) bool { return v[0] < than[0] || v[0] == than[0] && v[1] < than[1] }
	switch {
	case !ok:
	case older(oldestKernel):
		x.find("error", "kernel.old", "kernel "+release, words{
			what: fmt.Sprintf("is older than %d.%d", oldestKernel[0], oldestKernel[1]),
			why:  "it lacks the BPF helper bpf_loop: the programs do not load",
			do:   "run a newer kernel, such as 6.1 of Debian 12",
		}, nil)
	case older(testedKernel):
		x.find("warning", "kernel.untested", "kernel "+release, words{
			what: fmt.Sprintf("is older than %d.%d, the oldest tested kernel", testedKernel[0], testedKernel[1]),
			why:  "the programs may not load",
			do:   "check with llcli preflight, or run a newer kernel",
		}, nil)
	}
}

// kernelVersion returns the first two numbers in a kernel release.
func kernelVersion(release string) (v [2]int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i := range v {
		digits := strings.TrimRightFunc(parts[i], func(r rune) bool { return r < '0' || r > '9' })
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func (x *examiner) checkJIT() {
	if jit, ok := x.read("/proc/sys/net/core/bpf_jit_enable"); ok && jit == "0" {
		x.find("warning", "kernel.jit", "net.core.bpf_jit_enable", words{
			what: "is 0: the kernel interprets eBPF programs",
			why:  "every packet costs several times the processor time of compiled programs",
			do:   "sysctl -w net.core.bpf_jit_enable=1, then restart the daemon: loaded programs are not compiled later",
		}, nil)
	}
	if harden, ok := x.read("/proc/sys/net/core/bpf_jit_harden"); ok && harden == "2" {
		x.find("note", "kernel.jit_harden", "net.core.bpf_jit_harden", words{
			what: "is 2: constants are hidden in all compiled programs",
			why:  "the programs of the data plane get slower; 1 affects only programs of unprivileged users",
			do:   "sysctl -w net.core.bpf_jit_harden=1, if it is meant for unprivileged users",
		}, nil)
	}
}

const bpffs = "/sys/fs/bpf"

// checkBPFFS checks the file system that contains the pins.
func (x *examiner) checkBPFFS() {
	dir := x.Config.PinDir
	if x.Config.Backend != "ebpf" || onBPFFS(dir) {
		return
	}
	rel, err := filepath.Rel(bpffs, dir)
	var fix func() (string, error)
	if err == nil && filepath.IsLocal(rel) && os.Geteuid() == 0 {
		fix = mountBPFFS
	}
	severity := "warning" // the daemon mounts a BPF file system if permitted
	if x.daemon.running() {
		severity = "error"
	}
	x.find(severity, "bpffs.missing", dir, words{
		what: "is not on a BPF file system that is visible here",
		why:  "llcli, bpftool and the next daemon do not see the pins; if only the daemon sees its mount, programs and connections end with it",
		do:   "mount -t bpf bpf " + bpffs + ", permanently with systemd's sys-fs-bpf.mount, then restart the daemon",
	}, fix)
}

// onBPFFS reports whether dir, or its nearest existing parent, is on a BPF file system.
func onBPFFS(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err == nil {
			return st.Type == unix.BPF_FS_MAGIC
		}
		if dir == "/" {
			return false
		}
	}
}

func mountBPFFS() (string, error) {
	err := unix.Mount("bpf", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	return "mount -t bpf bpf " + bpffs, err
}
