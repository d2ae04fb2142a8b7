// SPDX-License-Identifier: Apache-2.0

package testtraffic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// Patience is how long to wait for an answer.
const Patience = 5 * time.Second

// TalkTCP connects from ns to target, sends data, reads it back, and returns the server's name.
func TalkTCP(ns *testnet.NS, local, target string, data []byte) (string, error) {
	c, err := ns.Dial("tcp", local, target, Patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	all, err := io.ReadAll(c)
	if err := errors.Join(err, <-sent); err != nil {
		return "", err
	}
	name, back, _ := bytes.Cut(all, []byte("\n"))
	if !bytes.Equal(back, data) {
		return "", fmt.Errorf("%d bytes came back of %d", len(back), len(data))
	}
	return string(name), nil
}

// TalkUDP sends one datagram from ns to target, and returns the name of the server.
func TalkUDP(ns *testnet.NS, local, target string, data []byte) (string, error) {
	c, err := ns.Dial("udp", local, target, Patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return ExchangeUDP(c, data)
}

// ExchangeUDP sends one datagram on a connection and returns the name of the server.
func ExchangeUDP(c net.Conn, data []byte) (string, error) {
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	if _, err := c.Write(data); err != nil {
		return "", err
	}
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil {
		return "", err
	}
	name, back, _ := bytes.Cut(b[:n], []byte(" "))
	if !bytes.Equal(back, data) {
		return "", fmt.Errorf("%d bytes came back of %d", len(back), len(data))
	}
	return string(name), nil
}
