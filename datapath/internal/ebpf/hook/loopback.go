// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/datapath/internal/sysctl"
)

// LoopbackIndex is the ifindex of the loopback device in every network namespace.
const LoopbackIndex = 1

// ownSettings are the sysctls that make the kernel accept packets on the loopback device whose
// source is an address of the host, or a loopback address.
var ownSettings = [2]ownSetting{{"accept_local", 23}, {"route_localnet", 26}}

type ownSetting struct {
	name string
	conf int // IPV4_DEVCONF_…
}

func (s ownSetting) path() string { return "net/ipv4/conf/lo/" + s.name }

// AcceptLocalSources makes the kernel accept packets on the loopback device whose source is an
// address of the host, or a loopback address. Without our program the kernel accepts such packets
// anyway, since they never leave it; with our program they are replies of services to the host,
// from one of its own addresses. The settings that it changes are recorded in folder. repaired is
// the number of settings that an earlier call had changed and that another program has since reset.
func (z *Netns) AcceptLocalSources(folder string) (repaired int, err error) {
	off, err := z.ownSettingsOff()
	if err != nil {
		return 0, err
	}
	for _, s := range ownSettings {
		if !slices.Contains(off, s.path()) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(folder, s.name)); err == nil {
			repaired++ // we had set it before
		}
		if err := z.PinNote(filepath.Join(folder, s.name)); err != nil {
			return repaired, err
		}
		if err := z.setOwn(s.name, s.conf, 1); err != nil {
			return repaired, err
		}
	}
	return repaired, nil
}

// ownSettingsOff returns the paths of the ownSettings that are 0. It runs a few times a second.
func (z *Netns) ownSettingsOff() (off []string, err error) {
	if z.own == nil {
		err = z.Do(func() (err error) {
			z.own, err = sysctl.Open(ownSettings[0].path(), ownSettings[1].path())
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	values, err := z.own.Values()
	if err != nil {
		z.own.Close()
		z.own = nil
		return nil, err
	}
	for name, value := range values {
		if value == "0" {
			off = append(off, name)
		}
	}
	return off, nil
}

// RestoreLocalSources restores the settings that AcceptLocalSources recorded in folder.
func (z *Netns) RestoreLocalSources(folder string) error {
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
func (z *Netns) setOwn(name string, conf int, value uint32) error {
	const ifAFSpec, inetConf = unix.IFLA_AF_SPEC, 1 // IFLA_INET_CONF
	return z.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = LoopbackIndex
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
