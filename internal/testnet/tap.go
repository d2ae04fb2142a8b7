// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tap sends and receives whole frames on a device, as fast as one thread can: received frames are
// only read on request. It is not safe for concurrent use.
type Tap struct {
	fd       int
	buf, oob []byte
}

// Tap opens a device. The Tap receives only packets from the device's far end.
func (ns *NS) Tap(t T, device string) *Tap {
	t.Helper()
	tap := &Tap{buf: make([]byte, 1<<17), oob: make([]byte, 256)}
	ns.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return fmt.Errorf("device %s: %w", device, err)
		}
		// With protocol 0, no frame is received before the options are set.
		tap.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		for _, o := range []struct{ level, option, value int }{
			{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64 << 20},
			{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4 << 20},
			{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
			{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
			{unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
		} {
			if err := unix.SetsockoptInt(tap.fd, o.level, o.option, o.value); err != nil {
				return fmt.Errorf("tap on %s, option %d: %w", device, o.option, err)
			}
		}
		return unix.Bind(tap.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: dev.Index})
	})
	t.Cleanup(func() { unix.Close(tap.fd) })
	return tap
}

// Send puts a frame on the wire.
func (tap *Tap) Send(frame []byte) error {
	_, err := unix.Write(tap.fd, frame)
	return err
}

// Receive passes each frame received so far to fn, which may keep it. A VLAN tag that the device
// removed is restored.
func (tap *Tap) Receive(fn func(frame []byte)) error {
	for {
		n, oobn, _, _, err := unix.Recvmsg(tap.fd, tap.buf, tap.oob, unix.MSG_DONTWAIT)
		switch err {
		case nil:
			fn(tap.whole(tap.buf[:n], tap.oob[:oobn]))
		case unix.EAGAIN:
			return nil
		case unix.EINTR, unix.ENETDOWN: // the device went down and may return
		default:
			return err
		}
	}
}

func (tap *Tap) whole(frame, oob []byte) []byte {
	out := make([]byte, 0, len(frame)+4)
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(frame) < 12 {
		return append(out, frame...)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA ||
			len(m.Data) < int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			continue
		}
		aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
		if aux.Status&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tpid := uint16(unix.ETH_P_8021Q)
		if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tpid = aux.Vlan_tpid
		}
		out = append(out, frame[:12]...)
		out = append(out, byte(tpid>>8), byte(tpid), byte(aux.Vlan_tci>>8), byte(aux.Vlan_tci))
		return append(out, frame[12:]...)
	}
	return append(out, frame...)
}
