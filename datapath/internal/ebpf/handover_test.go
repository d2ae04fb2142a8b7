// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// handover is a node with two services, "old" with the first server and "new" with the second, and
// a client with connections to a frontend of the old service.
type handover struct {
	*network
	old, new datapath.Service
	udp      func() string
	tcp      *conversation
}

func newHandover(t *testing.T) *handover {
	h := &handover{network: newNetwork(t), old: web(1), new: web(1)}
	h.attach()
	h.serve()
	h.old.Frontends = append(h.old.Frontends, frontend("198.51.100.10:81", datapath.UDP))
	h.new.Frontends = []datapath.Frontend{frontend("198.51.100.20:80", datapath.TCP)}
	h.new.Backends = backendAddrs(8080, "10.0.1.12")
	h.put("old", h.old)
	h.put("new", h.new)
	c := h.asker("198.51.100.10:80")
	h.udp = func() string { return h.datagram(c) }
	h.tcp = h.dial("198.51.100.10:80")
	for range 2 {
		h.answer("before", h.udp, "udp-0")
	}
	return h
}

// give moves the frontends with port 80 to the new service; later: the old service releases them
// before the new one gets them.
func (h *handover) give(later bool) {
	h.t.Helper()
	passed := h.old.Frontends[:2]
	h.old.Frontends = h.old.Frontends[2:]
	h.new.Frontends = append(h.new.Frontends, passed...)
	if later {
		h.put("old", h.old)
		h.ok(h.d.sweeper.Whole())
		h.answer("while no Service has the frontend", h.udp, "udp-0")
	}
	h.put("new", h.new)
	h.put("old", h.old)
}

func (h *handover) answer(when string, ask func() string, want string) {
	h.t.Helper()
	if got := ask(); got != want {
		h.t.Errorf("%s: answered by %q, want %s", when, got, want)
	}
}

// TestFrontendIsHandedOver: UDP connections to a frontend move to the service that now has it, even
// if the client does not pause; TCP connections, and connections through other frontends, stay.
func TestFrontendIsHandedOver(t *testing.T) {
	for name, later := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			h := newHandover(t)
			c := h.asker("198.51.100.10:81")
			other := func() string { return h.datagram(c) }
			for range 2 {
				h.answer("before, by another frontend", other, "udp-0")
			}
			h.give(later)
			testnet.Eventually(t, 5*time.Second, "the new service has the client", func() bool {
				h.ok(h.d.Maintain(context.Background()))
				return h.udp() == "udp-1"
			})
			h.ok(h.d.sweeper.Whole())
			h.answer("by another frontend", other, "udp-0")
			h.tcp.echo(t, "with the old service")
			list, _, err := h.d.Connections().List(context.Background(), datapath.ConnectionFilter{Protocol: datapath.UDP}, "", 10)
			// A reply that the old server sent in the meantime may have opened a connection of its
			// own.
			list = slices.DeleteFunc(list, func(c datapath.Connection) bool { return c.Service == "" })
			if err != nil || len(list) != 2 {
				t.Errorf("connections %+v, %v; want one by each frontend", list, err)
			}
			if left := len(h.d.services.Taken()); left != 0 {
				t.Errorf("%d frontends are looked for still", left)
			}
		})
	}
}

// TestFrontendIsHandedOverWithItsServer: a UDP connection stays with its server if the server is a
// backend of the service that now has the frontend, or of a service to which that service diverts
// the client.
func TestFrontendIsHandedOverWithItsServer(t *testing.T) {
	for name, change := range map[string]func(*datapath.Service){
		"its own": func(s *datapath.Service) { s.Backends = backendAddrs(8080, "10.0.1.11", "10.0.1.12") },
		"diverted": func(s *datapath.Service) {
			s.Diverts = []datapath.Divert{{Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Service: "old"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandover(t)
			change(&h.new)
			h.give(false)
			h.ok(h.d.sweeper.Whole())
			list, _, err := h.d.Connections().List(context.Background(), datapath.ConnectionFilter{Protocol: datapath.UDP, Service: "old"}, "", 10)
			if err != nil || len(list) != 1 || list[0].Sent.Packets != 2 {
				t.Errorf("connections %+v, %v; want the existing one", list, err)
			}
			h.answer("with its server", h.udp, "udp-0")
		})
	}
	t.Run("its own, but down", func(t *testing.T) {
		h := newHandover(t)
		h.new.Backends = backendAddrs(8080, "10.0.1.11", "10.0.1.12")
		h.new.Backends[0].State = datapath.BackendDown
		h.give(false)
		testnet.Eventually(t, 5*time.Second, "another one has the client", func() bool { return h.udp() == "udp-1" })
	})
}
