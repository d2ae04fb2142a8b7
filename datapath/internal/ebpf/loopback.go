// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// loopbackIndex is that of the loopback in every network namespace.
const loopbackIndex = 1

// loopbackPort is the port for what the host sends to its own addresses: with the program of
// the egress hook alone.
const loopbackPort = datapath.PortName(innerPrefix + "link lo")

// followLoopback has our program on the loopback of the host while there is something that it
// could be for: a frontend, or a rule of destinations, on a host that has ports.
func (d *DataPlane) followLoopback() error {
	if d.services == nil || d.nats == nil || d.ports == nil {
		return nil // not open yet
	}
	d.services.mu.RLock()
	wanted := len(d.services.owner) > 0
	d.services.mu.RUnlock()
	d.nats.mu.RLock()
	wanted = wanted || d.nats.uses(rulesDNAT)
	d.nats.mu.RUnlock()
	if err := d.ports.holdLoopback(wanted); err != nil {
		return fmt.Errorf("loopback, for what the host sends to its own addresses: %w", err)
	}
	return nil
}

// soonOnLoopback is followLoopback after something came that may be for it. It is not waited
// for: what fails is tried again, and told, with the upkeep.
func (d *DataPlane) soonOnLoopback() {
	if !d.onLoopback.Load() {
		_ = d.followLoopback()
	}
}

// holdLoopback attaches to the loopback, or takes the program off.
func (p *ports) holdLoopback(wanted bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := 0
	for name, t := range p.byName {
		if name != loopbackPort && t.zone == zoneHost && len(t.hooks) > 0 {
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
	z, err := p.d.zone(zoneHost)
	if err != nil {
		return err
	}
	folder := p.folder(zoneHost, loopbackPort)
	if t != nil && z.attached(t) {
		p.d.onLoopback.Store(true)
		return z.mend(t, folder)
	}
	if t != nil {
		if err := p.detach(loopbackPort, t); err != nil {
			return err
		}
	}
	if err := acceptOwn(z); err != nil {
		return err
	}
	t = &port{zone: zoneHost, device: "lo", ifindex: loopbackIndex}
	if t.hooks, err = attachHooks(z, p.d.config.Attach, folder, loopbackIndex); err != nil {
		return err
	}
	p.byName[loopbackPort] = t
	p.d.onLoopback.Store(true)
	return nil
}

// acceptOwn has the kernel take packets with an address of the host for their source on the
// loopback, one of the loopback itself included, as it does of itself with those that never
// left it: answers of services to the host, by one of its own addresses.
func acceptOwn(z *zone) error {
	// IFLA_INET_CONF; IPV4_DEVCONF_ACCEPT_LOCAL, IPV4_DEVCONF_ROUTE_LOCALNET
	const ifAFSpec, inetConf, acceptLocal, routeLocalnet = unix.IFLA_AF_SPEC, 1, 23, 26
	return z.do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = loopbackIndex
		req.AddData(msg)
		spec := nl.NewRtAttr(ifAFSpec|unix.NLA_F_NESTED, nil)
		conf := spec.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil).AddRtAttr(inetConf|unix.NLA_F_NESTED, nil)
		for _, setting := range []int{acceptLocal, routeLocalnet} {
			conf.AddRtAttr(setting, binary.NativeEndian.AppendUint32(nil, 1))
		}
		req.AddData(spec)
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return errors.Join(errors.New("set net.ipv4.conf.lo.accept_local and route_localnet to 1"), err)
		}
		return nil
	})
}
