// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// maxWarnings limits the warnings about one change.
const maxWarnings = 20

// checkUnseen refuses to delete the last Interface of a device that rules name: packets of the
// device would bypass these rules. With Force, in a rollback and for object files the change is
// made, with a warning for each device.
func (p *plan) checkUnseen(t *Transaction) error {
	for _, was := range p.gone {
		if was.Kind != KindInterface {
			continue
		}
		device := deviceOf(was, t)
		if device == "" || p.isAttached(device, t) {
			continue
		}
		count, first := 0, Key{}
		for _, kind := range []string{KindFirewallRule, KindNAT} {
			for o := range p.each(kind) {
				if !namesDevice(o, device) {
					continue
				}
				if count++; count == 1 {
					first = o.Key
				}
			}
		}
		what := fmt.Sprintf("%s names its device %q", first, device)
		if count > 1 {
			what = fmt.Sprintf("%d rules name its device %q, the first is %s", count, device, first)
		}
		switch {
		case count > 0 && !t.Force && !t.restores && t.Owner != OwnerFile:
			return refuse(Conflict, was.Key, "",
				"%s, and would see no packet of it: delete or change what names the device first, or use force (llcli: --force)", what)
		case count > 0:
			p.warn("%s: %s, and sees no packet of it any more: %s is not filtered or translated", was.Key, what, device)
		case p.counts[KindFirewallRule] > 0:
			p.warn("%s: FirewallRules see no packet of device %q any more", was.Key, device)
		}
	}
	return nil
}

func (p *plan) warn(format string, args ...any) {
	if len(p.warnings) < maxWarnings {
		p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
	}
}

func deviceOf(o *Object, t *Transaction) string {
	v := o.Value.(*Interface)
	if v.Address.IsValid() && t.DeviceOf != nil {
		return t.DeviceOf(o.Name)
	}
	return v.Device
}

// isAttached reports whether an object attaches the programs to a device after the change.
func (p *plan) isAttached(device string, t *Transaction) bool {
	for o := range p.each(KindInterface) {
		if deviceOf(o, t) == device {
			return true
		}
	}
	for o := range p.each(KindEndpoint) {
		if o.Value.(*Endpoint).Device == device {
			return true
		}
	}
	for o := range p.each(KindBridge) {
		has := func(b datapath.BridgePort) bool { return b.Device == device }
		if slices.ContainsFunc(o.Value.(*Bridge).Ports, has) {
			return true
		}
	}
	return false
}

// namesDevice reports whether a rule matches packets of a device.
func namesDevice(o *Object, device string) bool {
	var m *datapath.Match
	switch v := o.Value.(type) {
	case *FirewallRule:
		m = &v.Match
	case *NAT:
		m = &v.Match
	default:
		return false
	}
	return slices.Contains(m.In, device) || slices.Contains(m.Out, device)
}
