// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// hostPorts returns a configuration that maps port 8080 on each of the given addresses of the node.
func hostPorts(protocol string, addresses ...string) map[string]any {
	var list []map[string]any
	for _, ip := range addresses {
		list = append(list, map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": protocol, "hostIP": ip})
	}
	return map[string]any{"runtimeConfig": map[string]any{"portMappings": list}}
}

// wantTaken fails the test unless an ADD was rejected because a pod already has the port.
func wantTaken(t *testing.T, err *api.Error, port, pod string) {
	t.Helper()
	if err == nil || err.Reason() != api.ReasonConflict || err.Data.CNICode != api.CNITryAgain ||
		!strings.HasPrefix(err.Message, "runtimeConfig.portMappings: hostPort "+port+" ") || !strings.Contains(err.Message, "pod shop/web-"+pod+" ") {
		t.Errorf("%v; want a conflict about hostPort %s of pod %s", err, port, pod)
	}
}

// TestHostPortOfAnother: a host port maps to the first pod that requested it until that pod is
// removed, even across restarts.
func TestHostPortOfAnother(t *testing.T) {
	n := newNode(t)
	n.mustAdd("first", hostPorts("tcp", ""))
	wantTaken(t, n.command(api.CNIAdd, "second", hostPorts("tcp", "")), "8080/tcp", "first")
	n.wantOnly("first")
	if err := n.command(api.CNIAdd, "first", hostPorts("tcp", "")); err == nil || !strings.Contains(err.Message, "run DEL first") {
		t.Errorf("ADD twice: %v", err)
	}
	n.restart()
	wantTaken(t, n.command(api.CNIAdd, "second", hostPorts("tcp", "192.0.2.17")), "8080/tcp", "first")
	if err := n.command(api.CNIDel, "first", nil); err != nil {
		t.Fatal(err)
	}
	n.mustAdd("second", hostPorts("tcp", "192.0.2.17"))
	wantTaken(t, n.command(api.CNIAdd, "first", hostPorts("tcp", "")), "192.0.2.17:8080/tcp", "second")
	n.wantOnly("second")
}

// TestHostPortsApart tests pairs of ports that can coexist, and pairs that conflict.
func TestHostPortsApart(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		a, b     map[string]any
		conflict string // the reported port
	}{
		{hostPorts("tcp", ""), hostPorts("udp", ""), ""},
		{hostPorts("tcp", "192.0.2.17"), hostPorts("tcp", "127.0.0.18"), ""},
		{hostPorts("tcp", "127.0.0.1", "::1"), hostPorts("tcp", "192.0.2.17"), ""},
		{hostPorts("tcp", "0.0.0.0"), hostPorts("tcp", "::"), ""},
		{hostPorts("tcp", "0.0.0.0"), hostPorts("tcp", "2001:db8::17"), ""},
		{hostPorts("TCP", "192.0.2.17"), hostPorts("", "::ffff:192.0.2.17"), "192.0.2.17:8080/tcp"},
		{hostPorts("sctp", "2001:db8::17"), hostPorts("sctp", "2001:db8:0::17"), "[2001:db8::17]:8080/sctp"},
		{hostPorts("udp", "::"), hostPorts("udp", "2001:db8::17"), "8080/udp"},
		{hostPorts("udp", "2001:db8::17"), hostPorts("udp", ""), "[2001:db8::17]:8080/udp"},
		{hostPorts("udp", "127.0.0.1"), hostPorts("udp", "0.0.0.0"), "127.0.0.1:8080/udp"},
		{hostPorts("udp", "0.0.0.0"), hostPorts("udp", ""), "8080/udp"},
	} {
		n.mustAdd("a", c.a)
		err := n.command(api.CNIAdd, "b", c.b)
		switch {
		case c.conflict != "":
			wantTaken(t, err, c.conflict, "a")
		case err != nil:
			t.Errorf("%v beside %v: %v", c.b, c.a, err)
		}
		for _, container := range []string{"a", "b"} {
			if err := n.command(api.CNIDel, container, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.wantOnly()
}

// TestHostPortOfReplaced: the DEL of the previous pod is still queued when the ADD of the next pod
// arrives.
func TestHostPortOfReplaced(t *testing.T) {
	n := newNode(t)
	n.mustAdd("old", hostPorts("tcp", ""))
	release, err := n.hold(t.Context(), ownerOf(n.params(api.CNIDel, "old", nil)))
	if err != nil {
		t.Fatal(err)
	}
	path := n.enqueue("old", nil)
	go release() // whichever goroutine reads the queue first carries out the DEL
	n.mustAdd("new", hostPorts("tcp", ""))
	n.wantOnly("new")
	if _, err := os.Stat(path); err == nil {
		t.Error("it is queued still")
	}
}

// TestHostPortAtOnce: of many concurrent requests, only one gets the port.
func TestHostPortAtOnce(t *testing.T) {
	n := newNode(t)
	var mu sync.Mutex
	var won []string
	var all sync.WaitGroup
	for _, c := range names(20) {
		all.Go(func() {
			if n.command(api.CNIAdd, c, hostPorts("tcp", "")) == nil {
				mu.Lock()
				defer mu.Unlock()
				won = append(won, c)
			}
		})
	}
	all.Wait()
	if len(won) != 1 {
		t.Errorf("%q have it", won)
	}
	n.wantOnly(won...)
}
