// SPDX-License-Identifier: Apache-2.0

package health

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestBound: at the limit, the oldest connection is closed for a new one; a closed connection no
// longer counts.
func TestBound(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	l := Bound(raw, 2)
	connect := func() (client, server net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	open := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		timeout, ok := err.(net.Error)
		return ok && timeout.Timeout()
	}
	first, _ := connect()
	second, atServer := connect()
	if !open(first) || !open(second) {
		t.Fatal("one of two is closed")
	}
	third, _ := connect()
	if open(first) || !open(second) || !open(third) {
		t.Error("not the oldest one is closed")
	}
	_ = atServer.Close()
	fourth, _ := connect()
	if !open(third) || !open(fourth) {
		t.Error("a closed one counts")
	}
}

// TestSilentClients: clients that send nothing do not keep others from their answers.
func TestSilentClients(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(Bound(l, MaxConnections)) }()
	defer server.Close()
	for range 3 * MaxConnections {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	answer, err := http.Get("http://" + l.Addr().String())
	if err != nil || !answer.Close || answer.Body.Close() != nil {
		t.Errorf("no answer that ends the connection: %v %v", answer, err)
	}
}
