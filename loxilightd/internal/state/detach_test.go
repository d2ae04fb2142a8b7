// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestNeededInterfaces: an Interface can be removed from a device that other objects need only with
// Force, whether the change is a deletion, a replacement or an update.
func TestNeededInterfaces(t *testing.T) {
	on := func(name, device string, inSwitch bool, role datapath.Role) *Object {
		return &Object{Key: Key{KindInterface, name}, Owner: "cli", Spec: fmt.Sprint(device, role, inSwitch),
			Value: &Interface{datapath.Port{Device: device, Switch: inSwitch, Role: role}}}
	}
	eth0, eth1 := on("eth0", "eth0", false, datapath.RoleUplink), on("eth1", "eth1", false, datapath.RolePort)
	web := service(t, "web", "192.0.2.7:80 1")
	announced := service(t, "web", "192.0.2.7:80 1")
	announced.Value.(*Service).Announce = true
	rule := &Object{Key: Key{KindFirewallRule, "deny"}, Owner: "cli", Spec: "eth0",
		Value: &FirewallRule{datapath.FirewallRule{Match: datapath.Match{In: []string{"eth0"}}}}}
	peer := func(name, underlay string) *Object {
		return &Object{Key: Key{KindPeer, name}, Owner: "cli", Spec: underlay,
			Value: &Peer{datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr(underlay)}}}}
	}
	remove := &Transaction{Delete: []Key{eth0.Key}}
	observed := func(isAttached bool) Observed {
		return Observed{
			IsAttached: func(string) bool { return isAttached },
			DeviceTo: func(a netip.Addr) string {
				return map[string]string{"203.0.113.2": "eth0", "2001:db8:9::2": "br0", "2001:db8:9::3": "vlan5"}[a.String()]
			},
			Devices: func() map[string]datapath.Device {
				return map[string]datapath.Device{"br0": {Ports: []string{"eth0", "eth1"}}, "vlan5": {Parent: "eth0"}}
			},
		}
	}
	for name, c := range map[string]struct {
		objects []*Object
		change  *Transaction
		missing bool     // the Interface has not found its device
		refused []string // words in the error
		warned  string   // warning with Force, or if the change is not rejected
	}{
		"the last Interface": {[]*Object{eth0, web}, remove, false,
			[]string{"Service/web", "no Interface is left", "--force"}, "Service/web: connections from other hosts are no longer accepted"},
		"one of two":     {[]*Object{eth0, eth1, web}, remove, false, nil, `Service/web: connections that arrive on device "eth0" are no longer accepted`},
		"with a Service": {[]*Object{eth0, web}, &Transaction{Delete: []Key{eth0.Key, web.Key}}, false, nil, ""},
		"the last uplink": {[]*Object{eth0, eth1, announced}, remove, false,
			[]string{"Service/web", "not be announced", "uplink"}, "Service/web: no address is announced"},
		"another role": {[]*Object{eth0, announced}, &Transaction{Put: []*Object{on("eth0", "eth0", false, datapath.RolePort)}}, false,
			[]string{"Service/web", "not be announced"}, "no address is announced"},
		"of a Tunnel": {[]*Object{eth0, eth1, peer("node2", "203.0.113.2")}, remove, false,
			[]string{"Peer/node2", `"eth0"`}, "tunnel packets of Peer/node2"},
		"of an IPv6 Tunnel, port of a bridge": {[]*Object{eth0, eth1, peer("node2", "2001:db8:9::2")}, remove, false,
			[]string{"Peer/node2", `"eth0"`}, "tunnel packets of Peer/node2"},
		"of an IPv6 Tunnel, below a VLAN": {[]*Object{eth0, eth1, peer("node2", "2001:db8:9::3")}, remove, false,
			[]string{"Peer/node2", `"eth0"`}, "tunnel packets of Peer/node2"},
		"of no Tunnel": {[]*Object{eth0, eth1, peer("node2", "2001:db8:9::2")}, &Transaction{Delete: []Key{eth0.Key},
			Put: []*Object{on("br0", "br0", false, datapath.RoleUplink)}}, false, nil, ""},
		"named by a rule": {[]*Object{eth0, rule}, remove, false, []string{"FirewallRule/deny", "--force"}, "FirewallRule/deny"},
		"replaced": {[]*Object{eth0, rule}, &Transaction{Replace: &Scope{Owner: "cli", Kinds: []string{KindInterface}}}, false,
			[]string{"FirewallRule/deny"}, "FirewallRule/deny"},
		"another device": {[]*Object{eth0, rule}, &Transaction{Put: []*Object{on("eth0", "eth2", false, datapath.RoleUplink)}}, false,
			[]string{"FirewallRule/deny"}, "FirewallRule/deny"},
		"another netns": {[]*Object{eth0, rule}, &Transaction{Put: []*Object{on("eth0", "eth0", true, datapath.RoleUplink)}}, false,
			[]string{"FirewallRule/deny"}, "FirewallRule/deny"},
		"the right netns": {[]*Object{eth0, rule}, &Transaction{Put: []*Object{on("eth0", "eth0", true, datapath.RoleUplink)}}, true, nil, ""},
		"another Interface for it": {[]*Object{eth0, rule, web}, &Transaction{Delete: []Key{eth0.Key},
			Put: []*Object{on("wan", "eth0", false, datapath.RoleUplink)}}, false, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t, testConfig(t.TempDir()))
			commit(t, s, &Transaction{Put: c.objects})
			change := *c.change
			change.Observed = observed(!c.missing)
			if c.refused != nil {
				wantRefusal(t, s, &change, Conflict, eth0.String(), "", c.refused[0])
				_, err := s.Commit(&change)
				for _, text := range c.refused {
					if err == nil || !strings.Contains(err.Error(), text) {
						t.Errorf("refused with %v, want %q", err, text)
					}
				}
				change.Force = true
			}
			got := strings.Join(commit(t, s, &change).Warnings, "\n")
			if c.warned == "" && got != "" || !strings.Contains(got, c.warned) {
				t.Errorf("warnings %q, want %q", got, c.warned)
			}
		})
	}
}
