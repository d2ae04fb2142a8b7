// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestRejected: a sender whose packet is rejected, by a Policy or a FirewallRule, at the sender's node or
// at the receiver's, is notified, wherever it is.
func TestRejected(t *testing.T) {
	eachKind(t, []clusterKind{
		{tunnel: "vxlan", pods: 2}, {tunnel: "geneve", over6: true, pods: 2}, {merged: true, pods: 2}, {tunnel: "gre", merged: true, pods: 2},
	}, func(t *testing.T, c *cluster) {
		server := c.stationOf("pod-1-1")
		from := []string{"pod-1-2", "pod-2-1", "outside", "node 1", "node 2"}
		for _, by := range []struct{ name, objects string }{
			{"Policy, ingress", rejectTier + policyOf("pod-1-1", "isolate: [ingress], isolateAction: reject")},
			{"FirewallRule", fmt.Sprintf("kind: FirewallRule\nname: no\nspec: {priority: 10, action: reject, hooks: [forward], match: {destination: [%s, %q]}}", server.addr[0], server.addr[1].String())},
		} {
			t.Run(by.name, func(t *testing.T) {
				c.under(t, 1, by.objects)
				for _, name := range from {
					if by.name == "FirewallRule" && name == "node 1" {
						continue // its packets are not forwarded
					}
					c.expectRejected(t, c.stationOf(name), server)
				}
			})
		}
		t.Run("Policy, egress", func(t *testing.T) {
			c.under(t, 1, rejectTier+policyOf("pod-1-1", "isolate: [egress], isolateAction: reject"))
			for _, to := range []string{"pod-1-2", "pod-2-1", "outside"} {
				c.expectRejected(t, server, c.stationOf(to))
			}
		})
	})
}

const rejectTier = "kind: Tier\nname: main\nspec: {order: 200}\n---\n"

// policyOf returns a Policy with a pod as its subject.
func policyOf(pod, spec string) string {
	return "kind: Entity\nname: subject\nspec: {labels: {app: subject}, endpoint: {namespace: shop, pod: " + pod + "}}\n---\n" +
		"kind: Policy\nname: no\nspec: {tier: main, appliedTo: [{entities: {matchLabels: {app: subject}}}], " + spec + "}"
}

// under puts objects in force on a node until the test ends.
func (c *cluster) under(t *testing.T, node int, objects string) {
	t.Helper()
	n := c.nodes[node-1]
	file := n.File(objects)
	n.LLCLI("apply", "--wait", "10s", "-f", file)
	t.Cleanup(func() { n.LLCLI("delete", "-f", file) })
}

// expectRejected checks that packets of each protocol and family get an answer that says no.
func (c *cluster) expectRejected(t *testing.T, from, to *station) {
	t.Helper()
	for family := range 2 {
		at := netip.AddrPortFrom(to.addr[family], matrixPort)
		for protocol, try := range map[string]func() error{
			"TCP":  func() error { return refusedTCP(from, at) },
			"UDP":  func() error { return refusedUDP(from, at) },
			"SCTP": func() error { return c.abortedSCTP(from, at) },
			"ICMP": func() error { return c.prohibitedICMP(from, at.Addr()) },
		} {
			if err := try(); err != nil {
				t.Errorf("%s, %s to %s (%s): %v", protocol, from.name, to.name, at, err)
			}
		}
	}
}

func refusedTCP(from *station, to netip.AddrPort) error {
	c, err := from.Dial("tcp", "", to.String(), 900*time.Millisecond)
	if err == nil {
		return errors.Join(errors.New("connected"), c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("not refused: %w", err)
	}
	return nil
}

func refusedUDP(from *station, to netip.AddrPort) error {
	c, err := from.Dial("udp", "", to.String(), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, 64)
	for range 3 { // the first may wait for its neighbour
		if _, err = c.Write(make([]byte, 64)); err == nil {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // cannot fail
			_, err = c.Read(b)
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
	}
	return fmt.Errorf("not refused: %w", err)
}

func (c *cluster) abortedSCTP(from *station, to netip.AddrPort) error {
	raw := c.listenSCTP(from, familyOf(to.Addr()), "")
	defer raw.Close()
	const port = 30123
	_, err := exchangeRaw(raw, to.Addr(), sctpPacket(port, to.Port(), 0, chunkInit, sctpInit(clientTag)), func(b []byte) bool {
		return sctpSound(b) && binary.BigEndian.Uint16(b) == to.Port() && binary.BigEndian.Uint16(b[2:]) == port && b[12] == 6 // ABORT
	})
	return err
}

func (c *cluster) prohibitedICMP(from *station, to netip.Addr) error {
	family := familyOf(to)
	raw := c.listenICMP(from, family)
	defer raw.Close()
	request, kind, code, quoted := byte(8), byte(3), byte(13), 8+20
	if family == 1 {
		request, kind, code, quoted = 128, 1, 1, 8+40
	}
	const id = 4711
	echo := testpkt.Build(testpkt.ICMP{Type: request, ID: id}, testpkt.Payload("ping"))
	b := make([]byte, 2048)
	for i := range 3 {
		if _, err := raw.WriteTo(echo, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		_ = raw.SetReadDeadline(time.Now().Add(patienceOf(i, 3))) // cannot fail
		for {
			n, _, err := raw.ReadFrom(b)
			if err != nil {
				break
			}
			if n >= quoted+8 && b[0] == kind && b[1] == code && binary.BigEndian.Uint16(b[quoted+4:]) == id {
				return nil
			}
		}
	}
	return context.DeadlineExceeded
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
