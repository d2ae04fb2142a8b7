// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// reuseObjects isolate pods with label app=closed in both directions, and pods with label app=mute for
// received traffic. Pods with label app=picky talk with hosts with label app=open only, and
// may send to hosts with label app=asked.
const reuseObjects = `
kind: Tier
name: main
spec: {order: 200}
---
kind: Policy
name: closed
spec: {tier: main, isolate: [ingress, egress], appliedTo: [{entities: {matchLabels: {app: closed}}}]}
---
kind: Policy
name: mute
spec: {tier: main, isolate: [ingress], appliedTo: [{entities: {matchLabels: {app: mute}}}]}
---
kind: Policy
name: picky
spec:
  tier: main
  isolate: [ingress, egress]
  appliedTo: [{entities: {matchLabels: {app: picky}}}]
  ingress: [{action: allow, from: [{entities: {matchLabels: {app: open}}}]}]
  egress: [{action: allow, to: [{entities: {matchExpressions: [{key: app, operator: In, values: [open, asked]}]}}]}]
`

// reuses is how often an address gets another owner.
func reuses(t *testing.T) int {
	v := os.Getenv("LOXILIGHT_REUSES")
	if v == "" {
		return 6
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("LOXILIGHT_REUSES=%s: %v", v, err)
	}
	return n
}

// The port of servers, and the first port of clients.
const (
	reuseServer = 4660
	reuseClient = 5000
)

// talker is a host with sockets on the ports of a server and of a client, in both families.
type talker struct {
	conns   map[int][2]*net.UDPConn // by port, IPv4 first
	heard   map[int]*atomic.Uint64  // datagrams, by port
	client  int                     // its port
	sends   atomic.Bool             // the client asks the peer's server every millisecond
	answers atomic.Int32            // the port of the peer to which the server sends every millisecond; 0: none
	stopped chan struct{}
	wg      sync.WaitGroup
}

// newTalker opens the sockets of a host, and begins to count the received datagrams.
func newTalker(t *testing.T, ns *testnet.NS, peer [2]netip.Addr, client int) *talker {
	t.Helper()
	x := &talker{conns: map[int][2]*net.UDPConn{}, heard: map[int]*atomic.Uint64{}, client: client, stopped: make(chan struct{})}
	for _, port := range []int{reuseServer, client} {
		x.heard[port] = &atomic.Uint64{}
		var both [2]*net.UDPConn
		for family, network := range []string{"udp4", "udp6"} {
			ns.Do(t, func() (err error) {
				both[family], err = net.ListenUDP(network, &net.UDPAddr{Port: port})
				return err
			})
			x.wg.Go(func() {
				for b := make([]byte, 100); ; {
					n, err := both[family].Read(b)
					if err == nil && n > 0 {
						x.heard[port].Add(1)
					} else if err != nil {
						select {
						case <-x.stopped:
							return
						default: // an ICMP error
						}
					}
				}
			})
		}
		x.conns[port] = both
	}
	x.wg.Go(func() {
		for {
			select {
			case <-x.stopped:
				return
			case <-time.After(time.Millisecond):
			}
			for family, a := range peer { // fails until the host has its addresses
				if x.sends.Load() {
					_, _ = x.conns[client][family].WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(a, reuseServer))
				}
				if port := x.answers.Load(); port > 0 {
					_, _ = x.conns[reuseServer][family].WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(a, uint16(port)))
				}
			}
		}
	})
	t.Cleanup(x.stop)
	return x
}

func (x *talker) stop() {
	select {
	case <-x.stopped:
		return
	default:
	}
	close(x.stopped)
	for _, both := range x.conns {
		for _, c := range both {
			c.Close()
		}
	}
	x.wg.Wait()
}

func (x *talker) all() uint64 { return x.heard[reuseServer].Load() + x.heard[x.client].Load() }

// receives waits until packets arrive at the port of the server, or of the client.
func (x *talker) receives(t *testing.T, what string, server bool) {
	t.Helper()
	port := x.client
	if server {
		port = reuseServer
	}
	before := x.heard[port].Load()
	testnet.Eventually(t, 5*time.Second, what, func() bool { return x.heard[port].Load() > before+10 })
}

// TestReusedAddress: a pod has the addresses of another pod, which was deleted just before and had
// connections. No packet passes by the verdicts of the earlier pod, nor on its connections.
// LOXILIGHT_REUSES is how often.
func TestReusedAddress(t *testing.T) {
	s := newSite(t)
	s.Apply(requiredObjects)
	s.Apply(reuseObjects)
	list := s.list("1.1.0", nil)
	s.mustSetEntity("witness", "w", "open")
	w := s.newPodOf("witness", "w")
	if err := s.tryAdd(list, w); err != nil {
		t.Fatal(err)
	}
	shared := [2]netip.Addr{netip.MustParseAddr("10.73.3.99"), netip.MustParseAddr("2001:db8:73::99")}
	witness := newTalker(t, w.NS, shared, reuseClient)
	witness.sends.Store(true)
	for i := range reuses(t) {
		role := []string{"open", "mute", "open", "closed"}[i%4]
		id, uid := fmt.Sprint("pod-", i), fmt.Sprint("uid-", i)
		s.mustSetEntity(id, uid, role)
		p := s.newPodOf(id, uid)
		p.rt.CapabilityArgs = map[string]any{"ips": []string{shared[0].String() + "/24", shared[1].String() + "/64"}}
		x := newTalker(t, p.NS, [2]netip.Addr{w.address(true), w.address(false)}, reuseClient+i/2)
		x.sends.Store(role == "closed")
		before := witness.all()
		if err := s.tryAdd(list, p); err != nil {
			t.Fatalf("ADD %s: %v", id, err)
		}
		if role != "open" {
			time.Sleep(50 * time.Millisecond)
			if n := x.all(); n > 0 {
				t.Fatalf("pod %d, %s: %d packets reach it: %d at the server's port, %d at the client's", i, role, n, x.heard[reuseServer].Load(), x.heard[x.client].Load())
			}
			if n := witness.all() - before; n > 0 {
				t.Fatalf("pod %d, %s: %d packets leave it", i, role, n)
			}
		}
		if role == "open" {
			// The pod opens the connection on which the witness continues to send to the next pod.
			x.receives(t, "requests reach it", true)
			x.sends.Store(true)
			witness.receives(t, "the witness is asked", true)
			witness.answers.Store(int32(x.client))
			x.receives(t, "replies reach it", false)
			x.answers.Store(reuseClient)
			witness.receives(t, "the witness is answered", false)
		}
		s.del(list, p)
		if _, err := s.Client.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindEntity, Name: "pod/shop/" + id}}}); err != nil {
			t.Fatal(err)
		}
		x.stop()
		if role != "open" {
			witness.answers.Store(0)
		}
		if i%8 == 7 { // later than the time after which its connections end anyway
			time.Sleep(1100 * time.Millisecond)
		}
	}
}

// TestReusedRemoteAddress: a host outside has the addresses of another one. From the moment at which its
// Entity is Ready, no packet passes by the verdicts of the earlier one, and the connections of the earlier
// one end within a second. LOXILIGHT_REUSES is how often.
func TestReusedRemoteAddress(t *testing.T) {
	s := newSite(t)
	s.Apply(strings.Replace(requiredObjects, "enabled: true", "enabled: false", 1)) // else the pod has another source
	s.Apply(reuseObjects)
	s.mustSetEntity("picky", "p", "picky")
	p := s.newPodOf("picky", "p")
	if err := s.tryAdd(s.list("1.1.0", nil), p); err != nil {
		t.Fatal(err)
	}
	x := newTalker(t, p.NS, [2]netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")}, reuseClient)
	host := newTalker(t, s.outside, [2]netip.Addr{p.address(true), p.address(false)}, reuseClient+1)
	x.sends.Store(true)
	host.sends.Store(true)
	last := ""
	set := func(name, app string) {
		t.Helper()
		spec, err := json.Marshal(api.EntitySpec{Labels: map[string]string{"app": app}, Addresses: []string{"192.0.2.77", "2001:db8:2::77"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		wait := api.Change{Wait: api.Duration(10 * time.Second)}
		if last != "" {
			if _, err := s.Client.Delete(ctx, api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindEntity, Name: last}}, Change: wait}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Client.Apply(ctx, api.ApplyParams{Objects: []api.Object{{Kind: api.KindEntity, Name: name, Spec: spec}}, Change: wait}); err != nil {
			t.Fatal(err)
		}
		last = name
	}
	for i := range reuses(t) {
		set(fmt.Sprint("friend-", i), "open")
		x.receives(t, "requests reach the pod", true)
		host.receives(t, "requests of the pod reach the host", true)
		host.answers.Store(reuseClient)
		x.receives(t, "replies reach the pod", false)
		if i%8 == 1 {
			// The pod may send to the next host, which may only answer: its packets on the connections of
			// the earlier host pass no more once these have ended.
			x.sends.Store(false)
			set(fmt.Sprint("asked-", i), "asked")
			time.Sleep(time.Second)
			before := x.all()
			time.Sleep(100 * time.Millisecond)
			if n := x.all() - before; n > 0 {
				t.Fatalf("host %d: %d packets pass on connections of the earlier host", i, n)
			}
			x.sends.Store(true)
			host.receives(t, "requests of the pod reach the host that may answer", true)
		}
		set(fmt.Sprint("other-", i), "other")
		time.Sleep(10 * time.Millisecond) // packets under way
		atPod, atHost := x.all(), host.all()
		time.Sleep(50 * time.Millisecond)
		if in, out := x.all()-atPod, host.all()-atHost; in+out > 0 {
			t.Fatalf("host %d: %d packets reach the pod, %d the host, by the verdicts of the earlier host", i, in, out)
		}
		host.answers.Store(0) // until the pod has opened another connection
	}
}
