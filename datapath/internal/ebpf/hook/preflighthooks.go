// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// preflightHooks reports the kinds of hook to which program can be attached. It tries them in a
// temporary network namespace, which is removed when the thread exits.
func preflightHooks(program *ebpf.Program, attach string) datapath.PreflightHooks {
	done := make(chan datapath.PreflightHooks, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		alone := unix.Unshare(unix.CLONE_NEWNET) == nil
		done <- tryHooks(program, attach, alone)
	}()
	return <-done
}

func tryHooks(program *ebpf.Program, attach string, alone bool) datapath.PreflightHooks {
	h := datapath.PreflightHooks{OK: true, Use: "tcx"}
	if attach == "tc" {
		h.Use, h.Fallback = "tc", "configured (datapath.attach)"
	} else if err := tryTCX(program, alone); errors.Is(err, ebpf.ErrNotSupported) && attach == "" {
		h.Use, h.Fallback = "tc", fmt.Sprintf("kernel %s has no tcx, which is in 6.6 and later", kernel.Release())
	} else if err != nil {
		h.OK, h.Error = false, fmt.Sprintf("attach with tcx: %v", err)
	}
	if h.Use == "tc" && alone {
		if err := tryFilter(program); err != nil {
			h.OK, h.Error = false, fmt.Sprintf("attach with cls_bpf to clsact: %v", err)
		}
	}
	return h
}

// tryTCX attaches to the loopback device if alone in a namespace of its own; else it only queries.
func tryTCX(program *ebpf.Program, alone bool) error {
	if !alone {
		return HaveTCX()
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: LoopbackIndex, Program: program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	return l.Close()
}

// HaveTCX returns [ebpf.ErrNotSupported] if the kernel has no tcx.
func HaveTCX() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: LoopbackIndex, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) { // this hook does not exist
		err = ebpf.ErrNotSupported
	}
	return err
}

func tryFilter(program *ebpf.Program) error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	f := NewFilter(&Netns{Netlink: nl}, Sides()[1], LoopbackIndex, "")
	if err := nl.QdiscAdd(f.qdisc()); err != nil {
		return err
	}
	return nl.FilterReplace(f.entry(program))
}
