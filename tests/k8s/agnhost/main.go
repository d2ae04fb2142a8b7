// SPDX-License-Identifier: Apache-2.0

// Command agnhost runs Kubernetes' program of that name, agnhost-upstream, except for SCTP on a kernel
// without SCTP sockets: then it opens and accepts associations itself, with raw sockets.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const upstream = "/agnhost-upstream"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if ports := served(); len(args) > 0 && args[0] == "porter" && len(ports) > 0 && !hasSockets() {
		return serve(ports)
	}
	if len(args) > 0 && args[0] == "connect" && !hasSockets() {
		flags := flag.NewFlagSet("connect", flag.ContinueOnError)
		timeout := flags.Duration("timeout", 3*time.Second, "")
		protocol := flags.String("protocol", "tcp", "")
		server := ""
		for rest := args[1:]; len(rest) > 0; { // flags may follow the server
			if err := flags.Parse(rest); err != nil {
				return err
			}
			if rest = flags.Args(); len(rest) > 0 {
				server, rest = rest[0], rest[1:]
			}
		}
		if *protocol == "sctp" {
			return connect(server, *timeout)
		}
	}
	return unix.Exec(upstream, append([]string{upstream}, args...), os.Environ())
}

// hasSockets reports whether the kernel has SCTP sockets.
func hasSockets() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd) // it was not used
	}
	return err == nil
}

// served returns the SCTP ports that the environment names.
func served() (ports []uint16) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if text, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_"); ok {
			if n, err := strconv.ParseUint(text, 10, 16); err == nil {
				ports = append(ports, uint16(n))
			}
		}
	}
	return ports
}

// The types of chunks, and the size of the header of a packet.
const (
	chunkInit    = 1
	chunkInitAck = 2
	headerSize   = 12
)

// packet returns a packet with an INIT or INIT ACK chunk (RFC 9260, 3.3.2 and 3.3.3).
func packet(from, to uint16, verification uint32, kind byte, tag uint32) []byte {
	chunk := []byte{kind, 0, 0, 0}
	chunk = binary.BigEndian.AppendUint32(chunk, tag)
	chunk = binary.BigEndian.AppendUint32(chunk, 1<<16)         // window
	chunk = append(chunk, 0, 10, 0, 10)                         // streams
	chunk = binary.BigEndian.AppendUint32(chunk, rand.Uint32()) // transmission sequence number
	if kind == chunkInitAck {
		chunk = append(chunk, 0, 7, 0, 8, 'l', 'o', 'x', 'i') // state cookie
	}
	binary.BigEndian.PutUint16(chunk[2:], uint16(len(chunk)))
	p := binary.BigEndian.AppendUint16(nil, from)
	p = binary.BigEndian.AppendUint16(p, to)
	p = binary.BigEndian.AppendUint32(p, verification)
	p = append(append(p, 0, 0, 0, 0), chunk...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// parsed is what a packet says.
type parsed struct {
	from, to          uint16
	verification, tag uint32
	kind              byte
}

func parse(p []byte) (v parsed, ok bool) {
	if len(p) < headerSize+8 {
		return v, false
	}
	return parsed{
		binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint32(p[headerSize+4:]), p[headerSize],
	}, true
}

// resolve returns the address and port of a server, given by an address or by name.
func resolve(ctx context.Context, server string) (netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(server)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), uint16(port)), nil
}

// connect opens an association. Its errors are the errors of the command connect.
func connect(server string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	to, err := resolve(ctx, server)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	family := "ip4"
	if to.Addr().Is6() {
		family = "ip6"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, family+":132", to.Addr().String())
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer conn.Close()
	end := time.Now().Add(timeout)
	from, tag := uint16(32768+rand.IntN(28000)), rand.Uint32()|1
	for time.Now().Before(end) {
		if _, err := conn.Write(packet(from, to.Port(), 0, chunkInit, tag)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("OTHER: %w", err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(min(time.Until(end), 500*time.Millisecond))); err != nil {
			return err
		}
		buffer := make([]byte, 2048)
		for {
			n, _, err := conn.(net.PacketConn).ReadFrom(buffer) // without the header of IP
			if err != nil {
				break
			}
			if v, ok := parse(buffer[:n]); ok && v.kind == chunkInitAck && v.to == from && v.from == to.Port() && v.verification == tag {
				return nil
			}
		}
	}
	return errors.New("TIMEOUT")
}

// serve accepts associations on ports.
func serve(ports []uint16) error {
	failed := make(chan error)
	for _, family := range []string{"ip4", "ip6"} {
		conn, err := net.ListenPacket(family+":132", "")
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // the family may be disabled
			continue
		}
		go func() { failed <- answer(conn, ports) }()
	}
	fmt.Println("serving SCTP ports", ports)
	return <-failed
}

func answer(conn net.PacketConn, ports []uint16) error {
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buffer) // without the header of IP
		if err != nil {
			return err
		}
		v, ok := parse(buffer[:n])
		for _, port := range ports {
			if ok && v.kind == chunkInit && v.to == port {
				if _, err := conn.WriteTo(packet(port, v.from, v.tag, chunkInitAck, rand.Uint32()|1), from); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}
		}
	}
}
