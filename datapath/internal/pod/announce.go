// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netns"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/gratuitous"
)

// announce announces the hardware address of a pod's addresses to its neighbours: the previous
// holder of an address may have had a different one.
func (l *Links) announce(pod *end, p *datapath.PodLink) error {
	if len(p.Addresses) == 0 {
		return nil
	}
	return within(pod.ns, l.home, func() error { return sendAll(p) })
}

// within runs f on a thread in a network namespace, and returns the thread to home. A thread that
// cannot return is terminated.
func within(ns, home netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = f()
		}
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func sendAll(p *datapath.PodLink) error {
	dev, err := net.InterfaceByName(p.IfName)
	if err != nil {
		return err
	}
	var addrs []netip.Addr
	for _, a := range p.Addresses {
		addrs = append(addrs, a.Addr())
	}
	return gratuitous.Send(dev.Index, p.MAC, addrs)
}
