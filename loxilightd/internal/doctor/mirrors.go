// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// noteCopies records the counters of a Mirror, as the daemon reports them.
func (d *desired) noteCopies(o *api.Object) {
	var status api.MirrorStatus
	if o.Kind != api.KindMirror || json.Unmarshal(o.Status, &status) != nil || status.Counters == nil {
		return
	}
	if d.copies == nil {
		d.copies = map[string]api.MirrorCounters{}
	}
	d.copies[o.Name] = *status.Counters
}

// checkMirrors reports lost copies, and target devices that cannot carry any. A running daemon
// reports the latter by itself.
func (x *examiner) checkMirrors() {
	for _, o := range x.desired.objects {
		m, ok := o.Value.(*state.Mirror)
		if !ok {
			continue
		}
		if c := x.desired.copies[o.Name]; c.Drops > 0 {
			x.find("note", "mirrors.drops", o.Key.String(), words{
				what: fmt.Sprintf("has lost %d copies, and sent %d", c.Drops, c.Packets),
				why:  "the copies are incomplete: they did not fit the path to the Peer, or the target was too slow",
				do:   "set snaplen (llcli mirror set " + o.Name + " --snaplen 128), narrow the match, or use a faster target",
			}, nil)
		}
		if m.To.Device == "" || x.daemon.running() || x.targetInSwitch(m) {
			continue
		}
		const why = "copies are lost; the packets themselves are not affected"
		switch operstate, exists := x.read("/sys/class/net/" + m.To.Device + "/operstate"); {
		case !exists:
			x.find("warning", "mirrors.target", o.Key.String(), words{
				what: "copies to the device " + m.To.Device + ", which does not exist", why: why, do: "create the device, or delete the object",
			}, nil)
		case operstate == "down" || operstate == "lowerlayerdown":
			x.find("warning", "mirrors.target", o.Key.String(), words{
				what: "copies to the device " + m.To.Device + ", which has no link", why: why, do: "ip link set " + m.To.Device + " up; check its cable, or the other end of the link",
			}, nil)
		}
	}
}

// targetInSwitch reports whether the target device of a Mirror is in the network namespace of the
// switch, whose devices are not examined.
func (x *examiner) targetInSwitch(m *state.Mirror) bool {
	if x.Config.SwitchNamespace == "host" {
		return false
	}
	for _, o := range x.desired.objects {
		if v, ok := o.Value.(*state.Interface); ok && o.Key == m.Source && !m.HasNetns {
			return v.Switch
		}
	}
	return m.To.Switch || m.Source.Kind == state.KindEndpoint && !m.HasNetns
}
