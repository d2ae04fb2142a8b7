// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The actions that a program returns, from linux/pkt_cls.h.
const (
	actUnspec   = 1<<32 - 1 // pass to the kernel
	actRedirect = 7
)

// skbContext is the beginning of struct __sk_buff.
type skbContext struct {
	_       [10]uint32
	Ifindex uint32
}

// errAction means that a program returned an unexpected action for packets.
var errAction = errors.New("action")

// replayer runs one of our programs with BPF_PROG_RUN on a generator's packets.
type replayer struct {
	rig     *rig
	program map[string]*ebpf.Program // of up0, by side
}

func newReplayer(ctx context.Context, r *rig) (*replayer, error) {
	d, ok := r.balancer.(*loxilight)
	if !ok {
		return nil, errors.New("only our own programs are run")
	}
	ids, err := d.hooks(ctx, "up0")
	if err != nil {
		return nil, err
	}
	p := &replayer{rig: r, program: map[string]*ebpf.Program{}}
	for _, side := range []string{"ingress", "egress"} {
		if p.program[side], err = ebpf.NewProgramFromID(ebpf.ProgramID(ids[side])); err != nil {
			return nil, fmt.Errorf("program on the %s hook of up0: %w", side, err)
		}
	}
	return p, nil
}

func (p *replayer) close() {
	for _, program := range p.program {
		program.Close() // harmless if it fails: the daemon holds it too
	}
}

// cost returns how many ns a program takes per packet; it must return the given action for the
// packets. The cost of generating packets is subtracted, as if BPF_PROG_RUN ran on existing
// packets. The generator is aimed before each measurement.
func (p *replayer) cost(program *ebpf.Program, action uint32, count int, aim func() error) (float64, error) {
	g := p.rig.generator
	idle, err := p.ns(g.objects.Idle, g.objects.Idle, actUnspec, count, nil)
	if err != nil {
		return 0, err
	}
	empty, err := p.ns(g.objects.Replay, g.objects.Idle, actUnspec, count, aim)
	if err != nil {
		return 0, err
	}
	whole, err := p.ns(g.objects.Replay, program, action, count, aim)
	return whole - empty + idle, err
}

// ns runs the program in run, count times; measured is the program that receives its packets.
func (p *replayer) ns(run, measured *ebpf.Program, action uint32, count int, aim func() error) (ns float64, err error) {
	g := p.rig.generator
	if err := g.objects.Measured.Put(uint32(0), uint32(measured.FD())); err != nil {
		return 0, fmt.Errorf("hand the program to the generator: %w", err)
	}
	if aim != nil {
		if err := aim(); err != nil {
			return 0, err
		}
	}
	device, err := p.rig.node.links.LinkByName("up0")
	if err != nil {
		return 0, err
	}
	frame := make([]byte, frameSize)
	copy(frame, g.hop)
	copy(frame[6:], g.own)
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	options := &ebpf.RunOptions{Data: frame, Context: skbContext{Ifindex: uint32(device.Attrs().Index)}, Repeat: uint32(count)}
	err = p.rig.node.do(func() error {
		watch, err := startWatch()
		if err != nil {
			return err
		}
		got, err := run.Run(options)
		if err != nil {
			return fmt.Errorf("BPF_PROG_RUN: %w", err)
		}
		cpu, err := watch.stop()
		if err == nil && got != action {
			err = fmt.Errorf("packets ended with %w %d, not %d", errAction, int32(got), int32(action))
		}
		ns = float64(cpu) / float64(count)
		return err
	})
	return ns, err
}

// runCase is one row of the group run.
type runCase struct {
	what   string
	side   string
	action uint32
	flows  flows
	place  place
	opened bool // the connections are opened beforehand
	most   float64
}

func (r *rig) runCases(connectionsMax int) []runCase {
	var list []runCase
	for _, p := range places {
		for _, n := range []int{1, 1024, 65536, 1_000_000} {
			if n > connectionsMax {
				continue
			}
			c := runCase{what: fmt.Sprintf("connection tracked, 1 of %s, backends %s", grouped(n), p), side: "ingress",
				action: actRedirect, flows: r.flowsTo(p, n, 1), place: p, opened: true}
			if n == 1 {
				c.most = 160
			}
			list = append(list, c)
		}
	}
	for _, n := range []int{1, 1024, 65536} {
		if n <= connectionsMax {
			list = append(list, runCase{what: fmt.Sprintf("the same, 1 of %s, without translation", grouped(n)), side: "ingress",
				action: actRedirect, flows: flows{connections: n, target: backendFirst[elsewhere], targets: backendCount, port: backendPort + 1},
				place: elsewhere, opened: true})
		}
	}
	strange := flows{connections: 1024, target: backendFirst[onNode], targets: 1, port: backendPort + 2}
	return append(list,
		runCase{what: "not for a service", side: "ingress", action: actUnspec, flows: strange},
		runCase{what: "not for a service, on its way out", side: "egress", action: actUnspec, flows: strange},
	)
}

// run measures our programs alone.
func (b *bench) run(ctx context.Context) error {
	if !b.measures(pathOurs) {
		return nil
	}
	s := b.report.section("The programs alone",
		"ns per packet by `BPF_PROG_RUN`, quartiles in brackets. The last row, an empty program, is the cost of the measurement.",
		"path of a 64-byte UDP packet", "ns")
	r, err := newRig(pathOurs)
	if err != nil {
		return err
	}
	defer r.close() // its resources end with the process at the latest
	if err := b.attachOurs(ctx, r, b.daemon, len(places)*b.connectionsMax*11/10); err != nil {
		return err
	}
	services := append(servicesFor(onNode, 1, backendCount, "udp"), servicesFor(elsewhere, 1, backendCount, "udp")...)
	if err := r.set(ctx, services); err != nil {
		return err
	}
	p, err := newReplayer(ctx, r)
	if err != nil {
		return err
	}
	defer p.close()
	for _, c := range r.runCases(b.connectionsMax) {
		ns, err := b.runOne(ctx, p, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		s.row(c.what, fmt.Sprintf("%.0f (%.0f–%.0f)", ns.median, ns.low, ns.high))
		if c.most != 0 {
			b.report.atMost(c.what+", hot", ns.median, c.most, "ns")
		}
	}
	if err := b.firstAlone(ctx, s); err != nil {
		return err
	}
	idle, err := p.ns(r.generator.objects.Idle, r.generator.objects.Idle, actUnspec, b.packetCount, nil)
	s.row("an empty program", fmt.Sprintf("%.0f", idle))
	return err
}

// runOne measures one case once per round.
func (b *bench) runOne(ctx context.Context, p *replayer, c runCase) (spread, error) {
	f, count := c.flows, max(b.packetCount, c.flows.connections)
	if c.opened {
		if err := establish(p.rig, c.place, f); err != nil {
			return spread{}, err
		}
	}
	aim := func() error { return p.rig.generator.aim(f) }
	var values []float64
	for range b.rounds {
		if err := ctx.Err(); err != nil {
			return spread{}, err
		}
		ns, err := p.cost(p.program[c.side], c.action, count, aim)
		for try := 0; try < 5 && c.opened && errors.Is(err, errAction); try++ {
			// The network has changed: next hops are learnt again, but only from packets that the
			// kernel has sent.
			if err := establish(p.rig, c.place, f); err != nil {
				return spread{}, err
			}
			ns, err = p.cost(p.program[c.side], c.action, count, aim)
		}
		if err != nil {
			return spread{}, err
		}
		values = append(values, ns)
	}
	return spreadOf(values), nil
}
