// SPDX-License-Identifier: Apache-2.0

package route

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// TestKeyOfMessage: the kernel's message about an entry has the key of the Route for it.
func TestKeyOfMessage(t *testing.T) {
	attr := func(kind uint16, value []byte) syscall.NetlinkRouteAttr {
		return syscall.NetlinkRouteAttr{Attr: syscall.RtAttr{Type: kind}, Value: value}
	}
	metric := func(m uint32) syscall.NetlinkRouteAttr {
		return attr(unix.RTA_PRIORITY, binary.NativeEndian.AppendUint32(nil, m))
	}
	for _, c := range []struct {
		prefix string
		metric uint32
		family uint8
		attrs  []syscall.NetlinkRouteAttr
	}{
		{"192.0.2.0/24", 0, unix.AF_INET, []syscall.NetlinkRouteAttr{attr(unix.RTA_DST, []byte{192, 0, 2, 0})}},
		{"192.0.2.0/24", 77, unix.AF_INET, []syscall.NetlinkRouteAttr{metric(77), attr(unix.RTA_DST, []byte{192, 0, 2, 0})}},
		{"0.0.0.0/0", 0, unix.AF_INET, nil},
		{"::/0", 0, unix.AF_INET6, []syscall.NetlinkRouteAttr{metric(1024)}}, // the kernel's default
	} {
		prefix := netip.MustParsePrefix(c.prefix)
		want := KeyOf(&datapath.Route{Prefix: prefix, Metric: c.metric})
		x := &nl.RtMsg{RtMsg: unix.RtMsg{Family: c.family, Dst_len: uint8(prefix.Bits())}}
		if got, ok := KeyOfMessage(x, c.attrs); !ok || got != want {
			t.Errorf("%s metric %d: got %v, %v; want %v", c.prefix, c.metric, got, ok, want)
		}
	}
	x := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: 24}}
	if got, ok := KeyOfMessage(x, []syscall.NetlinkRouteAttr{attr(unix.RTA_DST, []byte{192, 0, 2})}); ok {
		t.Errorf("a message with three bytes of an address has key %v", got)
	}
}
