// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// loopbackIndex is the ifindex of the loopback device in every network namespace.
const loopbackIndex = 1

// loopbackPort is the port for packets from the host to its own addresses. It has only the egress
// program.
const loopbackPort = datapath.PortName(overlay.InnerPrefix + "link lo")

// followLoopback keeps our program attached to the host's loopback device while it may be needed:
// if a frontend or a DNAT rule exists, and the host has ports.
func (d *DataPlane) followLoopback() error {
	if d.services == nil || d.nats == nil || d.ports == nil {
		return nil // not open yet
	}
	wanted := d.services.HasFrontends() || d.nats.HasDNAT()
	if err := d.ports.holdLoopback(wanted); err != nil {
		return fmt.Errorf("loopback, for packets of the host to its own addresses: %w", err)
	}
	return nil
}

// soonOnLoopback is followLoopback after a change that may need it. Errors are ignored: Maintain
// tries again and reports them.
func (d *DataPlane) soonOnLoopback() {
	if !d.onLoopback.Load() {
		_ = d.followLoopback()
	}
}

// holdLoopback attaches the program to the loopback device, or detaches it.
func (p *ports) holdLoopback(wanted bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := 0
	for name, t := range p.byName {
		if name != loopbackPort && t.namespace == netnsHost && len(t.hooks) > 0 {
			others++
		}
	}
	t := p.byName[loopbackPort]
	if !wanted || others == 0 {
		if t == nil {
			return nil
		}
		delete(p.byName, loopbackPort)
		p.d.onLoopback.Store(false)
		return p.detach(loopbackPort, t)
	}
	z, err := p.d.namespace(netnsHost)
	if err != nil {
		return err
	}
	folder := p.folder(netnsHost, loopbackPort)
	if t != nil {
		if err := p.mend(z, t, folder); err != nil {
			return err
		}
	}
	if t == nil || !z.attached(t) {
		if err := p.attachLoopback(z, t, folder); err != nil {
			return err
		}
	}
	p.d.onLoopback.Store(true)
	repaired, err := acceptOwn(z, folder)
	p.d.keeper.noted(folder)
	p.d.keeper.repaired(repaired)
	return err
}

// attachLoopback attaches to the loopback device; t is the port from an earlier attempt, or nil.
func (p *ports) attachLoopback(z *namespace, t *port, folder string) (err error) {
	if t != nil {
		if err := p.detach(loopbackPort, t); err != nil {
			return err
		}
	}
	t = &port{namespace: netnsHost, device: "lo", ifindex: loopbackIndex}
	if t.hooks, err = attachHooks(z, p.d.config.Attach, folder, loopbackIndex); err != nil {
		return err
	}
	p.byName[loopbackPort] = t
	return nil
}

// ownSettings are the sysctls that make the kernel accept packets on the loopback device whose
// source is an address of the host, or a loopback address.
var ownSettings = []struct {
	name string
	conf int // IPV4_DEVCONF_…
}{{"accept_local", 23}, {"route_localnet", 26}}

// acceptOwn makes the kernel accept packets on the loopback device whose source is an address of
// the host, or a loopback address. Without our program the kernel accepts such packets anyway,
// since they never leave it; with our program they are replies of services to the host, from one of
// its own addresses. The settings that acceptOwn changes are recorded in folder.
func acceptOwn(z *namespace, folder string) (repaired int, err error) {
	for _, s := range ownSettings {
		path := "/proc/sys/net/ipv4/conf/lo/" + s.name
		var before []byte
		err := z.do(func() (err error) {
			before, err = os.ReadFile(path)
			return err
		})
		if err != nil {
			return repaired, err
		}
		if strings.TrimSpace(string(before)) != "0" {
			continue
		}
		if _, err := os.Lstat(filepath.Join(folder, s.name)); err == nil {
			repaired++ // we had set it before
		}
		if err := pinClone(z.egress, filepath.Join(folder, s.name)); err != nil {
			return repaired, err
		}
		if err := z.setOwn(s.name, s.conf, 1); err != nil {
			return repaired, err
		}
	}
	return repaired, nil
}

// refuseOwn restores the settings that acceptOwn recorded in folder.
func refuseOwn(z *namespace, folder string) error {
	for _, s := range ownSettings {
		path := filepath.Join(folder, s.name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := z.setOwn(s.name, s.conf, 0); err != nil {
			return err
		}
		if err := pin.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// setOwn sets net.ipv4.conf.lo.NAME.
func (z *namespace) setOwn(name string, conf int, value uint32) error {
	const ifAFSpec, inetConf = unix.IFLA_AF_SPEC, 1 // IFLA_INET_CONF
	return z.do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = loopbackIndex
		req.AddData(msg)
		spec := nl.NewRtAttr(ifAFSpec|unix.NLA_F_NESTED, nil)
		spec.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddRtAttr(inetConf|unix.NLA_F_NESTED, nil).
			AddRtAttr(conf, binary.NativeEndian.AppendUint32(nil, value))
		req.AddData(spec)
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("set net.ipv4.conf.lo.%s to %d: %w", name, value, err)
		}
		return nil
	})
}
