// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// verdicts decides about the first packet of each connection in user space, as kube-network-policies
// does: an iptables rule queues it (NFQUEUE; the nftables statement needs nft_queue), and a program sends
// a verdict. The decision is one look-up in a map, so this is a lower bound for such programs. The
// messages are defined in linux/netfilter/nfnetlink_queue.h.
type verdicts struct {
	socket  int
	stat    string          // schedstat file of its thread
	allows  map[uint16]bool // by destination port, if the source is in sources
	sources *net.IPNet
	ends    atomic.Bool
	ended   chan error
}

const (
	queueNumber  = 100
	queueCopy    = 64 // bytes of a packet that the program gets
	queueSubsys  = unix.NFNL_SUBSYS_QUEUE << 8
	queuePacket  = 0               // NFQNL_MSG_PACKET
	queueVerdict = queueSubsys | 1 // NFQNL_MSG_VERDICT
	queueConfig  = queueSubsys | 2 // NFQNL_MSG_CONFIG
	nfAccept     = 1
	nfDrop       = 0
)

// queueRules queue the first packets to the server.
const queueRules = "*filter\n:FORWARD ACCEPT [0:0]\n" +
	"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
	"-A FORWARD -d 10.1.0.0/24 -j NFQUEUE --queue-num 100\nCOMMIT\n"

func (r *rig) attachUserSpace() error {
	_, sources, err := net.ParseCIDR(allowedSources)
	if err != nil {
		return err
	}
	v := &verdicts{allows: map[uint16]bool{backendPort: true}, sources: sources, ended: make(chan error, 1)}
	if err := errors.Join((&nftables{rig: r}).keepUDP(), r.node.run(queueRules, "iptables-restore")); err != nil {
		return err
	}
	ready := make(chan error, 1)
	go func() {
		_ = r.node.do(func() error { // its error is sent to ready or ended
			err := v.open()
			ready <- err
			if err == nil {
				v.ended <- v.decide()
			}
			return nil
		})
	}()
	if err := <-ready; err != nil {
		return err
	}
	r.verdicts = v
	return nil
}

// open opens the queue. The calling thread stays on the CPU that is measured.
func (v *verdicts) open() error {
	var set unix.CPUSet
	set.Set(runtime.NumCPU() - 1)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	v.stat = fmt.Sprintf("/proc/self/task/%d/schedstat", unix.Gettid())
	var err error
	if v.socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return fmt.Errorf("socket for a packet queue: %w", err)
	}
	if err := unix.SetsockoptTimeval(v.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
		return errors.Join(err, unix.Close(v.socket))
	}
	bind := []byte{1, 0, 0, unix.AF_INET} // NFQNL_CFG_CMD_BIND
	params := make([]byte, 5)
	binary.BigEndian.PutUint32(params, queueCopy)
	params[4] = 2 // NFQNL_COPY_PACKET
	for _, attr := range []struct {
		kind  uint16
		value []byte
	}{{1, bind}, {2, params}} { // NFQA_CFG_CMD, NFQA_CFG_PARAMS
		if err := v.configure(attr.kind, attr.value); err != nil {
			return errors.Join(fmt.Errorf("packet queue: %w", err), unix.Close(v.socket))
		}
	}
	return nil
}

// configure sends a request about the queue, and waits for its acknowledgement.
func (v *verdicts) configure(kind uint16, value []byte) error {
	if err := v.send(queueConfig, unix.NLM_F_REQUEST|unix.NLM_F_ACK, kind, value); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, err := unix.Read(v.socket, reply)
	if err != nil {
		return err
	}
	if n < 20 || binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR {
		return errors.New("no acknowledgement")
	}
	if code := int32(binary.NativeEndian.Uint32(reply[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func (v *verdicts) send(kind, flags, attr uint16, value []byte) error {
	const head = unix.NLMSG_HDRLEN + 4
	length := head + 4 + len(value)
	b := make([]byte, (length+3)&^3)
	binary.NativeEndian.PutUint32(b, uint32(length))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], flags)
	binary.BigEndian.PutUint16(b[unix.NLMSG_HDRLEN+2:], queueNumber)
	binary.NativeEndian.PutUint16(b[head:], uint16(4+len(value)))
	binary.NativeEndian.PutUint16(b[head+2:], attr)
	copy(b[head+4:], value)
	_, err := unix.Write(v.socket, b)
	return err
}

// close ends the program.
func (v *verdicts) close() error {
	v.ends.Store(true)
	return errors.Join(<-v.ended, unix.Close(v.socket))
}

// decide sends verdicts until close is called.
func (v *verdicts) decide() error {
	buffer := make([]byte, 1<<16)
	for !v.ends.Load() {
		n, err := unix.Read(v.socket, buffer)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("packet queue: %w", err)
		}
		for rest := buffer[:n]; len(rest) >= unix.NLMSG_HDRLEN; {
			length := int(binary.NativeEndian.Uint32(rest))
			if length < unix.NLMSG_HDRLEN+4 || length > len(rest) {
				return fmt.Errorf("message of %d bytes in %d", length, len(rest))
			}
			if binary.NativeEndian.Uint16(rest[4:]) == queueSubsys|queuePacket {
				if err := v.answer(rest[unix.NLMSG_HDRLEN+4 : length]); err != nil {
					return err
				}
			}
			rest = rest[min((length+3)&^3, len(rest)):]
		}
	}
	return nil
}

// answer sends the verdict on a packet; attrs: its attributes.
func (v *verdicts) answer(attrs []byte) error {
	var id, packet []byte
	for len(attrs) >= 4 {
		length, kind := int(binary.NativeEndian.Uint16(attrs)), binary.NativeEndian.Uint16(attrs[2:])
		if length < 4 || length > len(attrs) {
			return fmt.Errorf("attribute of %d bytes in %d", length, len(attrs))
		}
		switch kind {
		case 1: // NFQA_PACKET_HDR
			id = attrs[4:8]
		case 10: // NFQA_PAYLOAD
			packet = attrs[4:length]
		}
		attrs = attrs[min((length+3)&^3, len(attrs)):]
	}
	verdict := make([]byte, 8)
	binary.BigEndian.PutUint32(verdict, nfDrop)
	if len(packet) >= 24 && v.may(packet) {
		binary.BigEndian.PutUint32(verdict, nfAccept)
	}
	copy(verdict[4:], id)
	return v.send(queueVerdict, unix.NLM_F_REQUEST, 2, verdict) // NFQA_VERDICT_HDR
}

func (v *verdicts) may(packet []byte) bool {
	return v.allows[binary.BigEndian.Uint16(packet[22:])] && v.sources.Contains(net.IP(packet[12:16]))
}

// used returns the CPU time that the program has used.
func (v *verdicts) used() (time.Duration, error) {
	text, err := os.ReadFile(v.stat)
	if err != nil {
		return 0, fmt.Errorf("CPU time of the program that decides: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(ns), err
}
