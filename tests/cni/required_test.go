// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// requiredObjects is siteObjects with a network that requires Entities.
var requiredObjects = strings.Replace(siteObjects, "masquerade:", "policy: required, masquerade:", 1)

// closedObjects isolate pods with label app=closed in both directions.
const closedObjects = `
kind: Tier
name: main
spec: {order: 200}
---
kind: Policy
name: closed
spec:
  tier: main
  isolate: [ingress, egress]
  appliedTo: [{entities: {matchLabels: {app: closed}}}]
`

// newPodOf creates the namespace of a pod that has a uid.
func (s *site) newPodOf(id, uid string) *pod {
	p := s.newPod(id)
	p.rt.Args = append(p.rt.Args, [2]string{"K8S_POD_UID", uid})
	return p
}

// setEntity configures the Entity of a pod, as the Kubernetes agent does.
func (s *site) setEntity(id, uid, app string) error {
	spec, err := json.Marshal(api.EntitySpec{
		Namespace: "shop", Labels: map[string]string{"app": app}, Endpoint: &api.EntityEndpoint{Namespace: "shop", Pod: id, UID: uid},
	})
	if err != nil {
		return err
	}
	_, err = s.Client.Apply(s.t.Context(), api.ApplyParams{Objects: []api.Object{{Kind: api.KindEntity, Name: "pod/shop/" + id, Spec: spec}}})
	return err
}

func (s *site) mustSetEntity(id, uid, app string) {
	s.t.Helper()
	if err := s.setEntity(id, uid, app); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) deleteEntity(id string) {
	s.t.Helper()
	s.LLCLI("delete", "entity", "pod/shop/"+id, "--wait", "5s")
}

// TestRequiredEntity: in a network that requires Entities, a pod is not opened before it has its own
// Entity, and the error says so; without Entity, no packet reaches or leaves it.
func TestRequiredEntity(t *testing.T) {
	s := newSite(t)
	s.Apply(requiredObjects)
	list := s.list("1.1.0", nil)
	s.mustSetEntity("early", "u1", "open")
	p := s.newPodOf("early", "u1")
	if err := s.tryAdd(list, p); err != nil {
		t.Fatal(err)
	}
	for _, a := range gateways {
		p.reaches(t, a)
	}

	for name, entity := range map[string]string{"none": "", "another's": "u2"} {
		t.Run(name, func(t *testing.T) {
			late := s.newPodOf("late", "u3")
			if entity != "" {
				s.mustSetEntity("late", entity, "open")
			}
			begin := time.Now()
			err := s.tryAdd(list, late)
			if err == nil || !strings.Contains(err.Error(), "no Entity names pod shop/late") || !strings.Contains(err.Error(), "loxilight-agent") {
				t.Errorf("ADD: %v", err)
			}
			if took := time.Since(begin); took > 11*time.Second {
				t.Errorf("ADD failed after %s, want at most 11 s", took)
			}
		})
	}
	s.wantPods(1)

	late := s.newPodOf("late", "u3")
	added := make(chan error, 1)
	go func() { added <- s.tryAdd(list, late) }()
	time.Sleep(300 * time.Millisecond)
	s.mustSetEntity("late", "u3", "open")
	if err := <-added; err != nil {
		t.Fatalf("ADD of a pod whose Entity follows: %v", err)
	}
	late.reaches(t, p.address(true))
	late.reaches(t, p.address(false))

	// The Entity ends with its pod: the next pod of that name has another uid.
	s.mustSetEntity("late", "u4", "open")
	mute := func(when string) {
		t.Helper()
		for _, a := range gateways {
			if err := late.pingWithin(a, time.Second); err == nil {
				t.Errorf("%s: %s answers", when, a)
			}
		}
		if err := p.pingWithin(late.address(true), time.Second); err == nil {
			t.Errorf("%s: a packet reaches the pod", when)
		}
	}
	testnet.Eventually(t, 5*time.Second, "the Endpoint says so", func() bool {
		return strings.Contains(s.LLCLI("get", "endpoints"), "all its traffic is dropped: no Entity names pod shop/late")
	})
	mute("with the Entity of a later pod")
	if out := s.LLCLI("policy", "check", "shop/late", gateways[0].String(), "icmp"); !strings.Contains(out, "deny") || !strings.Contains(out, "the Endpoint has no Entity") {
		t.Errorf("llcli policy check:\n%s", out)
	}
	if drops := s.Counters("", "").Drops; drops["policy_unknown"] == 0 || drops["policy"] != 0 {
		t.Errorf("drops %v, want policy_unknown", drops)
	}
	s.Kill()
	mute("with the daemon killed")
	s.Start()
	testnet.Eventually(t, 10*time.Second, "the other pod is ready again", func() bool { return p.ping(gateways[0]) == nil })
	mute("after a restart")
	s.mustSetEntity("late", "u3", "open")
	testnet.Eventually(t, 5*time.Second, "the pod is open again", func() bool { return late.ping(gateways[0]) == nil })
	s.deleteEntity("late")
	mute("without its Entity")
	p.reaches(t, gateways[0])
	s.Apply(siteObjects)
	testnet.Eventually(t, 5*time.Second, "the pod is open without Entity", func() bool { return late.ping(gateways[0]) == nil })
}

// talk sends datagrams from a namespace to port 4660 of the addresses, every millisecond, until stop
// is closed.
func talk(ns *testnet.NS, stop chan struct{}, text string, addresses ...string) error {
	var conns []*net.UDPConn
	for _, network := range []string{"udp4", "udp6"} {
		if err := ns.Try(func() error {
			c, err := net.ListenUDP(network, nil)
			conns = append(conns, c)
			return err
		}); err != nil {
			return err
		}
		defer conns[len(conns)-1].Close()
	}
	for {
		for _, a := range addresses {
			to := net.UDPAddr{IP: net.ParseIP(a), Port: 4660}
			c := conns[0]
			if to.IP.To4() == nil {
				c = conns[1]
			}
			_, _ = c.WriteToUDP([]byte(text), &to) // fails until the pod has its addresses
		}
		select {
		case <-stop:
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}

// hear returns a counter of the datagrams with a text that arrive at port 4660 of a namespace.
func hear(t *testing.T, ns *testnet.NS, text string) *atomic.Uint64 {
	t.Helper()
	count := &atomic.Uint64{}
	var c *net.UDPConn
	if err := ns.Try(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: 4660})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) // ends the goroutine
	go func() {
		for b := make([]byte, 100); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if string(b[:n]) == text {
				count.Add(1)
			}
		}
	}()
	return count
}

// noPacketRounds is how many pods TestNoPacketBeforePolicies adds.
func noPacketRounds() int {
	if n, err := strconv.Atoi(os.Getenv("LOXILIGHT_ADDS")); err == nil {
		return n
	}
	return 12
}

// TestNoPacketBeforePolicies: processes send to, and from, a pod before, during and after its ADD. No
// packet passes that its policies forbid, whenever its Entity and its policy are configured.
func TestNoPacketBeforePolicies(t *testing.T) {
	s := newSite(t)
	s.Apply(requiredObjects)
	list := s.list("1.1.0", nil)
	s.mustSetEntity("witness", "w", "open")
	witness := s.newPodOf("witness", "w")
	if err := s.tryAdd(list, witness); err != nil {
		t.Fatal(err)
	}
	const fromPod, toPod = "from the pod", "to the pod"
	heard := hear(t, witness.NS, fromPod)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	next := []string{"10.73.3.99", "2001:db8:73::99"}
	for _, peer := range []*testnet.NS{witness.NS, s.outside} {
		go func() { _ = talk(peer, stop, toPod, next...) }()
	}
	there := []string{witness.address(true).String(), witness.address(false).String(), "192.0.2.77", "2001:db8:2::77"}
	heardOutside := hear(t, s.outside, fromPod)
	wait := []time.Duration{-1, 0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}
	for i := range noPacketRounds() {
		id, uid := fmt.Sprint("pod-", i), fmt.Sprint("uid-", i)
		p := s.newPodOf(id, uid)
		p.rt.CapabilityArgs = map[string]any{"ips": []string{next[0] + "/24", next[1] + "/64"}}
		inPod := hear(t, p.NS, toPod)
		ends := make(chan struct{})
		go func() { _ = talk(p.NS, ends, fromPod, there...) }()
		before := heard.Load() + heardOutside.Load()
		configure := func() {
			s.Apply(closedObjects)
			s.mustSetEntity(id, uid, "closed")
		}
		after := wait[i%len(wait)]
		added := make(chan error, 1)
		if after < 0 {
			configure()
		}
		go func() { added <- s.tryAdd(list, p) }()
		if after >= 0 {
			time.Sleep(after)
			configure()
		}
		if i%4 == 3 {
			s.Kill()
			s.Start()
			if err := <-added; err != nil { // as the runtime does
				if err := s.tryDel(list, p); err != nil {
					t.Fatal(err)
				}
				go func() { added <- s.tryAdd(list, p) }()
			} else {
				added <- nil
			}
		}
		if err := <-added; err != nil {
			t.Fatalf("ADD: %v", err)
		}
		if a := []string{p.address(true).String(), p.address(false).String()}; !slices.Equal(a, next) {
			t.Fatalf("the pod has %s, want %s", a, next)
		}
		time.Sleep(20 * time.Millisecond)
		if got := inPod.Load(); got > 0 {
			t.Fatalf("pod %d, configured after %s: %d forbidden packets reached it", i, after, got)
		}
		if got := heard.Load() + heardOutside.Load() - before; got > 0 {
			t.Fatalf("pod %d, configured after %s: %d forbidden packets left it", i, after, got)
		}
		s.LLCLI("delete", "policy", "closed", "--wait", "5s")
		testnet.Eventually(t, 5*time.Second, "packets pass without the policy", func() bool {
			return inPod.Load() > 0 && heard.Load()+heardOutside.Load() > before
		})
		s.del(list, p)
		close(ends)
		s.deleteEntity(id)
	}
}
