// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// probe probes a backend once. The error is the reason why the backend is not healthy.
func probe(ctx context.Context, c *Check, backend netip.AddrPort) error {
	to := backend
	if c.Port != 0 {
		to = netip.AddrPortFrom(backend.Addr(), c.Port)
	}
	var err error
	switch c.Type {
	case TCP:
		err = probeTCP(ctx, to)
	case HTTP, HTTPS:
		err = probeHTTP(ctx, string(c.Type), c.Path, to)
	case Ping:
		err = probePing(ctx, to.Addr())
	default:
		err = fmt.Errorf("no such type of health check: %q", c.Type)
	}
	return plain(ctx, c, err)
}

// plain shortens an error that contains local sockets and addresses, so that the same fault always
// leads to the same message.
func plain(ctx context.Context, c *Check, err error) error {
	errno, isErrno := errors.AsType[syscall.Errno](err)
	timeout, isTimed := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		return nil
	case isErrno && ctx.Err() == nil:
		return fmt.Errorf("%s: %w", c.Type, errno)
	case ctx.Err() != nil, isTimed && timeout.Timeout():
		// Sockets have the same deadline as ctx and may reach it before the timer of ctx fires.
		return fmt.Errorf("%s: no answer in %s", c.Type, c.Timeout)
	}
	return fmt.Errorf("%s: %w", c.Type, err)
}

func probeTCP(ctx context.Context, to netip.AddrPort) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// httpClient makes one connection for each request: a reused connection would not show whether new
// connections are accepted.
var httpClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		// Backends are probed by address, for which certificates are rarely issued. The probe
		// checks whether backends serve requests, not their identity.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	},
}

func probeHTTP(ctx context.Context, scheme, path string, to netip.AddrPort) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+to.String()+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "loxilightd")
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // only the status code matters
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("answered with %s", resp.Status)
	}
	return nil
}

// ICMP message types (RFC 792, RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// echoHeader is type, code, checksum, identifier and sequence number.
const echoHeader = 8

var pingSequence atomic.Uint32

// probePing needs CAP_NET_RAW.
func probePing(ctx context.Context, to netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(echoRequest4), byte(echoReply4)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", echoRequest6, echoReply6
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, to.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	// The reply contains the whole request. Its payload distinguishes it from replies to other
	// processes, which the kernel delivers here as well.
	msg := make([]byte, echoHeader, echoHeader+16)
	msg[0] = request
	binary.BigEndian.PutUint16(msg[4:], uint16(os.Getpid()))
	binary.BigEndian.PutUint16(msg[6:], uint16(pingSequence.Add(1)))
	msg = binary.BigEndian.AppendUint64(msg, uint64(time.Now().UnixNano()))
	msg = append(msg, "loxiligh"...)
	if to.Is4() { // for ICMPv6, the kernel computes the checksum
		binary.BigEndian.PutUint16(msg[2:], checksum(msg))
	}
	if _, err := conn.Write(msg); err != nil {
		return err
	}
	return awaitEcho(conn.(*net.IPConn), reply, msg[4:])
}

func awaitEcho(conn *net.IPConn, reply byte, want []byte) error {
	buf := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFromIP(buf)
		if err != nil {
			return err
		}
		if n >= echoHeader && buf[0] == reply && bytes.Equal(buf[4:n], want) {
			return nil
		}
	}
}

// checksum returns the RFC 1071 checksum of a message of even length.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	return ^uint16(sum)
}
