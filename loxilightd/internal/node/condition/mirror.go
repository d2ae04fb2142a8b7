// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ofMirror returns a condition unless the packets of the source pass the programs, and copies reach
// the target.
func (w *world) ofMirror(name string, v *state.Mirror, s *state.Snapshot) condition {
	m, fault := s.Resolve(v, !w.isSplit())
	if fault != nil {
		return condition{message: fault.Text}
	}
	for _, need := range v.Needs() {
		if is := w.needed(need, s); !is.isMet() {
			return is
		}
	}
	if is := w.ofTargetDevice(&m); !is.isMet() {
		return is
	}
	is, ok := w.opts.Telemetry.MirrorState(datapath.MirrorName(name))
	if ok && len(is.Ports) == 0 {
		return condition{message: fmt.Sprintf("copies nothing, because packets of %s pass no attached device%s: see llcli get interfaces", v.Source, w.inNetnsOf(&m))}
	}
	return w.uncopied(&m)
}

// needed returns a condition if an object that a Mirror needs is not in force.
func (w *world) needed(k state.Key, s *state.Snapshot) condition {
	o, ok := s.Get(k)
	if !ok {
		return condition{}
	}
	status, ok := w.opts.RowStatus(k)
	if !ok || status.State != reconcile.Done {
		return condition{message: fmt.Sprintf("copies nothing, because %s is not applied yet: %s", k, status.Message), untried: !ok || status.IsUntried()}
	}
	is := w.of(o, s)
	if is.isMet() {
		return condition{}
	}
	return condition{message: fmt.Sprintf("copies nothing, because %s is not Ready: %s", k, is.message), untried: is.untried, quiet: true}
}

// ofTargetDevice returns a condition unless the device that receives copies can carry them.
func (w *world) ofTargetDevice(m *datapath.Mirror) condition {
	device := m.To.Device
	found := w.found[netnsOf(m.To.Switch && w.isSplit())]
	if device == "" || found == nil {
		return condition{}
	}
	known := device
	if a, ok := w.renamed[device]; ok {
		known = a.matches
	}
	if _, ok := found[known]; !ok {
		return condition{message: fmt.Sprintf("copies are lost, because device %q does not exist%s", device, w.inNetnsOf(m))}
	}
	switch is := w.linkOf(known, m.To.Switch); is.Link {
	case datapath.LinkDown:
		return condition{message: "copies are lost, because " + w.opts.linkIsDown(is.Device, m.To.Switch)}
	case datapath.LinkNoCarrier:
		return condition{message: "copies are lost, because " + noCarrier(is.Device)}
	}
	return condition{}
}

// inNetnsOf returns the network namespace of a target device, as the end of a sentence.
func (w *world) inNetnsOf(m *datapath.Mirror) string {
	switch {
	case m.To.Device == "" || !w.isSplit():
		return ""
	case m.To.Switch:
		return " in the switch"
	}
	return " in the host's network namespace"
}

// uncopied returns a message if packets of a Service or rule may pass devices in a network namespace
// from which copies do not reach the target device.
func (w *world) uncopied(m *datapath.Mirror) condition {
	if m.Port != "" || m.To.Device == "" || !w.isSplit() {
		return condition{}
	}
	elsewhere := "the switch"
	if m.To.Switch {
		elsewhere = "the host's network namespace"
	}
	return condition{ready: true, quiet: true, message: fmt.Sprintf(
		"packets that pass only devices in %s are not copied, because device %q is elsewhere: another Mirror with another device can copy these", elsewhere, m.To.Device)}
}
