// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// racer sends the replies of many silent connections, one packet each, while the connections are
// being deleted.
type racer struct {
	*rig
	x     *conn.Expirer
	paths [conn.ExpireBatch]path
	raw   [conn.ExpireBatch][2]rigConn // entries of both directions: the client's, and the replies'
	reply [conn.ExpireBatch][]byte
}

func newRacer(r *rig, x *conn.Expirer, f family) *racer {
	c := &racer{rig: r, x: x}
	p := r.connect(f, testpkt.ProtoUDP, natModes[0])
	for i := range c.paths {
		p.client = netip.AddrPortFrom(f.client.Addr(), f.client.Port()+uint16(i))
		p.source = p.client
		c.paths[i] = p
		r.slow("opening", p, stageOpen)
		r.slow("answer", p, stageAnswer)
		r.slow("confirmation", p, stageConfirm)
		r.nexthop(6, p.clientPort, 0, p.back())
		for d, tuple := range []rigTuple{p.forth(), p.back()} {
			c.raw[i][d], _ = r.conn(tuple)
		}
		c.reply[i] = packet(p.beport.arrives(), p.proto, p.backend, p.source, stageData, 61)
	}
	return c
}

// restore enters all connections, last seen at tick, and deletes connections that replies have
// opened.
func (c *racer) restore(tick uint32) {
	for i, p := range c.paths {
		for _, tuple := range []rigTuple{p.back(), p.back().turned()} {
			c.forget(tuple) // one is absent if the reply found its connection
		}
		for d, tuple := range []rigTuple{p.forth(), p.back()} {
			c.raw[i][d].LastSeenTick = tick
			c.write(tuple, c.raw[i][d])
		}
	}
}

// send sends all replies, and returns which of them the programs forwarded.
func (c *racer) send(start <-chan struct{}) (forwarded [conn.ExpireBatch]bool) {
	c.ns.Do(c.t, func() error {
		var ctx [46]uint32 // struct __sk_buff
		ctx[10] = c.paths[0].beport.index
		<-start
		for i := range c.reply {
			action, err := c.ingress.Run(&ebpf.RunOptions{Data: c.reply[i], Context: ctx[:]})
			if err != nil {
				return err
			}
			forwarded[i] = int32(action) == actRedirect
		}
		return nil
	})
	return forwarded
}

// TestSeenWhileExpiring: a packet after a silence either keeps its connection alive or finds it
// deleted. No packet is forwarded on a connection that is then deleted, although the fast path
// takes no lock.
func TestSeenWhileExpiring(t *testing.T) {
	const rounds, silent, idle = 1500, 20, 10
	base := newRig(t)
	x, err := conn.NewExpirer(base.maps)
	base.ok(err)
	defer func() { base.ok(x.Close()) }()
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := newRacer(base.fresh(t), x, f)
			kept, deleted := 0, 0
			for range rounds {
				now := rigTick()
				c.restore(now - silent)
				start, done := make(chan struct{}), make(chan [conn.ExpireBatch]bool)
				go func() { done <- c.send(start) }()
				all := make([]kernel.ExpirerExpire, conn.ExpireBatch)
				for i, p := range c.paths {
					all[i] = expireEntry(p.forth(), p.back(), now, idle)
				}
				close(start)
				c.ok(x.Run(all))
				for i, forwarded := range <-done {
					switch stays := all[i].Result == kernel.ExpirerExpireResultEXPIRE_STAYS; {
					case forwarded && !stays:
						t.Fatalf("the reply to %s was forwarded, and its connection deleted: result %d", c.paths[i].client, all[i].Result)
					case stays:
						kept++
					default:
						deleted++
					}
				}
			}
			if t.Logf("%d connections kept, %d deleted", kept, deleted); kept == 0 || deleted == 0 {
				t.Error("packets and deletion did not meet")
			}
		})
	}
}
