// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// nftObject is a chain or a rule in the output of nft -j list ruleset.
type nftObject struct {
	Chain *nftChain `json:"chain"`
	Rule  *nftRule  `json:"rule"`
}

type nftChain struct {
	Family, Table, Name, Type, Hook, Policy string
	Dev                                     json.RawMessage
}

type nftRule struct {
	Family, Table, Chain string
	Expr                 []map[string]json.RawMessage
}

// checkFirewall reports rules that drop packets on the slow path. Packets on the fast path bypass
// such rules.
func (x *examiner) checkFirewall() {
	if !x.forwards() {
		return // no object requires the host to forward packets
	}
	for _, chain := range x.plane.ForwardDrops {
		x.findForward(chain, "drops packets that none of its rules accepts, by its policy")
	}
	x.checkNFT()
}

// forwards reports whether any objects require the host to forward packets.
func (x *examiner) forwards() bool {
	return slices.ContainsFunc(x.desired.objects, func(o *state.Object) bool {
		return o.Kind == state.KindService || o.Kind == state.KindPodNetwork || o.Kind == state.KindNAT
	})
}

func (x *examiner) findForward(chain, what string) {
	accept := "accept packets to and from the addresses of pods and backends"
	switch {
	case strings.Contains(chain, "firewalld"):
		accept = "firewall-cmd --permanent --zone=ZONE --add-forward for a zone that has the devices, or a policy between their zones; then firewall-cmd --reload"
	case strings.HasSuffix(chain, " FORWARD"):
		accept = "iptables -P FORWARD ACCEPT (and ip6tables), or rules that accept packets to and from the addresses of pods and backends; Docker sets this policy at each start"
	}
	x.find("warning", "firewall.forward", chain, words{
		what: what,
		why: "packets on the slow path through the host are dropped there: the first packets between pods and other networks, and, for Services, packets to a neighbour " +
			"that is not resolved yet, fragments, packets with VLAN tags, and replies with an unknown path; so connections fail when they begin, or occasionally",
		do: accept,
	}, nil)
}

func (x *examiner) checkNFT() {
	out, err := x.command("nft", "-j", "list", "ruleset")
	if errors.Is(err, exec.ErrNotFound) {
		return // nft is not installed, so no rules exist
	}
	var ruleset struct{ Nftables []nftObject }
	if err == nil {
		err = json.Unmarshal([]byte(out), &ruleset)
	}
	if err != nil {
		x.hidden("nftables rules", err)
		return
	}
	last := make(map[string]*nftRule) // the last rule of each chain
	for _, o := range ruleset.Nftables {
		if r := o.Rule; r != nil {
			last[r.Family+" "+r.Table+" "+r.Chain] = r
		}
	}
	for _, o := range ruleset.Nftables {
		c := o.Chain
		if c == nil || c.Hook == "" {
			continue
		}
		name := c.Family + " " + c.Table + " " + c.Name
		switch {
		case c.Hook == "forward" && c.Type == "filter" && c.Policy != "drop" && endsInDrop(last[name]):
			x.findForward("nftables chain "+name, "drops packets that none of its rules accepts")
		case c.Family == "netdev" && x.isPort(string(c.Dev)):
			x.find("note", "firewall.netdev", "nftables chain "+name, words{
				what: "processes packets on a device's hook, after our programs",
				why:  "packets on the fast path are forwarded earlier: its rules and counters do not see them",
				do:   "nothing, or filter the clients of services by sourceRanges",
			}, nil)
		}
	}
}

// endsInDrop reports whether the last rule of a chain drops or rejects all packets.
func endsInDrop(r *nftRule) bool {
	if r == nil {
		return false
	}
	drops := false
	for _, expr := range r.Expr {
		for kind := range expr {
			switch kind {
			case "drop", "reject":
				drops = true
			case "counter", "log":
			default:
				return false // the rule drops only some packets
			}
		}
	}
	return drops
}

// isPort reports whether dev, a JSON name or list of names, contains one of our devices. It also
// returns true if dev is empty, because nft before version 1.0.7 does not output the device.
func (x *examiner) isPort(dev string) bool {
	if dev == "" {
		return true
	}
	for _, d := range x.plane.Devices {
		if strings.Contains(dev, `"`+d.Name+`"`) {
			return true
		}
	}
	return false
}

// checkNetworkd reports settings that make systemd-networkd delete other programs' routes and
// rules.
func (x *examiner) checkNetworkd() {
	if out, err := x.command("systemctl", "is-active", "systemd-networkd.service"); err != nil || strings.TrimSpace(out) != "active" {
		return
	}
	settings := x.networkdSettings()
	for _, key := range []string{"ManageForeignRoutes", "ManageForeignRoutingPolicyRules"} {
		if slices.Contains([]string{"no", "false", "0", "off", "n", "f"}, strings.ToLower(settings[key])) {
			continue
		}
		x.find("warning", "networkd.foreign", "systemd-networkd "+key, words{
			what: "is on: networkd deletes routes and rules of other programs",
			why:  "when networkd restarts or a link comes up, routes and rules to backends or clients are deleted",
			do:   "put [Network] with " + key + "=no into /etc/systemd/networkd.conf.d/loxilight.conf (the package does that), then systemctl restart systemd-networkd",
		}, nil)
	}
}

// networkdSettings reads networkd.conf and its drop-ins as networkd does: a file in /etc hides
// files of the same name in /run and /usr/lib; files with later names take precedence.
func (x *examiner) networkdSettings() map[string]string {
	settings := make(map[string]string)
	dirs := []string{"/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd"}
	for _, dir := range dirs {
		if text, ok := x.read(dir + "/networkd.conf"); ok {
			networkSection(text, settings)
			break
		}
	}
	dropIns := make(map[string]string) // name: path
	for _, dir := range slices.Backward(dirs) {
		entries, err := os.ReadDir(x.path(dir + "/networkd.conf.d"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".conf") {
				dropIns[e.Name()] = filepath.Join(dir, "networkd.conf.d", e.Name())
			}
		}
	}
	var names []string
	for name := range dropIns {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text, _ := x.read(dropIns[name])
		networkSection(text, settings)
	}
	return settings
}

// networkSection reads the keys in section [Network].
func networkSection(text string, settings map[string]string) {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		} else if key, value, ok := strings.Cut(line, "="); ok && section == "[Network]" && !strings.HasPrefix(line, "#") {
			settings[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
}
