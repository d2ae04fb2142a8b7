// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// remakePatience is the maximum time, on an idle machine, until pods have their links again.
const remakePatience = 20 * time.Second

// soon is how long to wait for a packet that may be lost.
const soon = 300 * time.Millisecond

// look returns the settings of a pod's interface, without those that change with a new device.
func (p *pod) look(t *testing.T) string {
	t.Helper()
	out := ""
	for _, what := range [][]string{
		{"-br", "link", "show", "eth0"}, {"-br", "addr", "show", "eth0"}, {"route", "show"}, {"-6", "route", "show", "dev", "eth0"}, {"tuntap"},
	} {
		text := p.Run(t, "ip", what...)
		if i := strings.Index(text, "@if"); i >= 0 { // the index of the other end
			text = text[:i] + strings.TrimLeft(text[i+3:], "0123456789")
		}
		out += text
	}
	return out
}

// TestLinksRecreated: another program deletes the switch's namespace, or the link of one pod at
// either end. Running pods get their links back with the same names, addresses, routes and MACs,
// and reach everything that they reached before; their host ports work again.
func TestLinksRecreated(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	server := s.newPod("server")
	server.rt.CapabilityArgs = map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]int{"ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 80_000_000, "egressBurst": 800_000},
	}
	if err := s.tryAdd(list, server); err != nil {
		t.Fatal(err)
	}
	pods := []*pod{server, s.addPod(list, "client"), s.addPod(list, "third")}
	server.ServeTCP(t, ":80", "server")
	s.outside.ServeTCP(t, ":80", "outside")
	var before []string
	for _, p := range pods {
		before = append(before, p.look(t))
	}

	// Traffic between two pods continues throughout.
	ctx, stop := context.WithCancel(context.Background())
	var traffic sync.WaitGroup
	traffic.Go(func() {
		for ctx.Err() == nil {
			_ = pods[1].ping(pods[2].address(true)) // lost while there is no link
		}
	})
	defer traffic.Wait()
	defer stop()

	works := func() error {
		for i, p := range pods {
			for _, a := range []netip.Addr{gateways[0], gateways[1], netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77"),
				pods[(i+1)%len(pods)].address(true), pods[(i+1)%len(pods)].address(false)} {
				if err := p.pingWithin(a, testnet.OnThisMachine(soon)); err != nil {
					return err
				}
			}
			if err := s.check(list, p); err != nil {
				return err
			}
		}
		for _, node := range []string{"192.0.2.1:8080", "[2001:db8:2::1]:8080"} {
			if got, err := testtraffic.TalkTCP(s.outside, "", node, []byte("hello")); err != nil || got != "server" {
				return errors.Join(err, errors.New("host port "+node+": "+got))
			}
		}
		return nil
	}
	patience := func(what string, disturbed time.Time) {
		t.Helper()
		within := testnet.OnThisMachine(remakePatience)
		var err error
		for err = works(); err != nil; err = works() {
			if time.Since(disturbed) > within {
				t.Fatalf("%s: %v\n%s", what, err, s.LLCLI("get", "endpoints"))
			}
		}
	}
	patience("at first", time.Now())
	deleteSwitch := func() { s.node.Run(t, "ip", "netns", "del", s.name) }
	for _, tt := range []struct {
		name    string
		disturb func()
	}{
		{"the namespace of the switch", deleteSwitch},
		{"the switch's end of a link", func() { s.node.Run(t, "ip", "-n", s.name, "link", "del", "hs2") }},
		{"the pod's end of a link", func() { pods[2].Run(t, "ip", "link", "del", "eth0") }},
	} {
		tt.disturb()
		begin := time.Now()
		patience(tt.name, begin)
		t.Logf("%s: all works after %v", tt.name, time.Since(begin).Round(10*time.Millisecond))
		for i, p := range pods {
			if after := p.look(t); after != before[i] {
				t.Errorf("%s: %s has\n%s\nand had\n%s", tt.name, p.rt.ContainerID, after, before[i])
			}
		}
	}
	for _, p := range pods {
		s.del(list, p)
	}
	s.wantPods(0)
}

// TestLinkOfAPodThatIsGone: the namespace of a pod is gone, and its link is deleted. The Endpoint
// reports that until it is garbage-collected.
func TestLinkOfAPodThatIsGone(t *testing.T) {
	s := newSite(t)
	list := s.list("1.1.0", nil)
	s.addPod(list, "stays")
	gone := s.newPod("gone")
	// A path that remains as a file after the end of its namespace is not garbage-collected.
	path := t.TempDir() + "/netns"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.node.Run(t, "mount", "--bind", gone.Path(), path)
	unmount := sync.OnceFunc(func() { s.node.Run(t, "umount", path) })
	defer unmount()
	gone.rt.NetNS = path
	if err := s.tryAdd(list, gone); err != nil {
		t.Fatal(err)
	}
	unmount()
	gone.Run(t, "ip", "link", "del", "eth0")
	message := ""
	testnet.Eventually(t, remakePatience, "the Endpoint says that the namespace of the pod is gone", func() bool {
		for o, err := range s.Client.List(context.Background(), api.ListParams{Kind: api.KindEndpoint}) {
			if err == nil && strings.Contains(o.Name, "gone") {
				message = string(o.Status)
			}
		}
		return strings.Contains(message, "Pending") && strings.Contains(message, path) && strings.Contains(message, "not a network namespace")
	})
	s.del(list, gone)
}
