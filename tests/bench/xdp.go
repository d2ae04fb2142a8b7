// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// withXDP returns l with the paths of our programs in XDP added.
func (b *bench) withXDP(l lineup) lineup {
	l.paths = slices.Concat(l.paths, b.available(pathsInXDP))
	return l
}

var pathsInXDP = []string{pathXDP, pathOtherXDP}

// inXDP reports whether the programs of the rig are in XDP on the client's port.
func (r *rig) inXDP() bool { return strings.HasSuffix(r.name, ", XDP") }

// xdpText describes the setup for our programs in XDP.
const xdpText = "\n" +
	"**loxilight, XDP** has `xdp: native` on the client's port. Only on this path is GRO\n" +
	"enabled in the pod, whose end of the veth needs GRO to accept frames. Packets to another\n" +
	"port are dropped by an XDP program at the other end of the wire, since a NIC sends XDP\n" +
	"frames without an sk_buff."

// takeFrames makes the receivers accept frames that the node sends in XDP. A pod converts them to
// packets; a wire swallows them unconverted, as a NIC would send them.
func (r *rig) takeFrames() error {
	if err := r.pod.offload("eth0", offloadGRO, true); err != nil {
		return err
	}
	wire, err := r.node.links.LinkByName(serverWire)
	if err != nil {
		return err
	}
	rcv := r.receivers[elsewhere]
	return r.node.do(func() (err error) {
		rcv.inXDP, err = link.AttachXDP(link.XDPOptions{Program: rcv.objects.SwallowFrame, Interface: wire.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

// xdpProbe is the number of packets that show which path they take.
const xdpProbe = 10_000

// wantXDP fails if packets from the generator (see aim) do not pass our program in XDP:
// otherwise a different program would have been measured.
func wantXDP(ctx context.Context, r *rig) error {
	d, ok := r.balancer.(*loxilight)
	if !ok || !r.inXDP() {
		return nil
	}
	ids, err := d.hooks(ctx, "up0")
	if err != nil {
		return err
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(ids["ingress"]))
	if err != nil {
		return fmt.Errorf("program on the ingress hook of up0: %w", err)
	}
	defer program.Close() // the daemon holds it too
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return err
	}
	defer stats.Close() // only counts
	before, err := program.Stats()
	if err != nil {
		return err
	}
	if _, err := r.generator.send(xdpProbe); err != nil {
		return err
	}
	after, err := program.Stats()
	if err == nil && after.RunCount-before.RunCount > xdpProbe/10 {
		err = errors.New("packets are not handled in XDP")
	}
	return err
}
