// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// checkLogin reports a login that Policies of this node may end: its port is not in the failsafe.
func (x *examiner) checkLogin() {
	client, port, found := x.login()
	if !found || x.admits(client, port) {
		return
	}
	names := x.policiesOfNode()
	if len(names) == 0 {
		return
	}
	x.find("warning", "policy.failsafe", fmt.Sprintf("tcp/%d", port), words{
		what: fmt.Sprintf("is the port of this login, from %s, and not in policy.failsafe.in, while Policy/%s applies to this node", client, names[0]),
		why:  "a change of Policies can end this login and prevent others",
		do:   fmt.Sprintf("add tcp/%d to policy.failsafe.in in %s, then %s", port, x.ConfigFile, x.reloadUnit()),
	}, nil)
}

// mostAncestors limits how many processes are searched for the login.
const mostAncestors = 64

// login returns the client's address and the node's port of the SSH connection of this process; sudo
// removes the variable, so that only an ancestor may have it.
func (x *examiner) login() (client netip.Addr, port uint16, found bool) {
	pid := "self"
	for range mostAncestors {
		environ, err := os.ReadFile(x.path("/proc/" + pid + "/environ"))
		if err != nil {
			return client, 0, false // not ours to read: as if there were no login
		}
		for _, v := range strings.Split(string(environ), "\x00") {
			if text, is := strings.CutPrefix(v, "SSH_CONNECTION="); is {
				return parseLogin(text)
			}
		}
		status, err := os.ReadFile(x.path("/proc/" + pid + "/status"))
		if err != nil {
			return client, 0, false
		}
		_, rest, _ := strings.Cut(string(status), "\nPPid:")
		line, _, _ := strings.Cut(rest, "\n")
		if pid = strings.TrimSpace(line); pid == "" || pid == "0" {
			break
		}
	}
	return client, 0, false
}

// parseLogin parses the value of SSH_CONNECTION: address and port of the client, then of the node.
func parseLogin(text string) (client netip.Addr, port uint16, ok bool) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return client, 0, false
	}
	client, err := netip.ParseAddr(words[0])
	n, perr := strconv.ParseUint(words[3], 10, 16)
	return client.Unmap().WithZone(""), uint16(n), err == nil && perr == nil
}

// admits reports whether the failsafe allows TCP connections from a client to a port of the node.
func (x *examiner) admits(client netip.Addr, port uint16) bool {
	return slices.ContainsFunc(x.Config.Failsafe[policy.Ingress], func(r policy.Rule) bool {
		return slices.ContainsFunc(r.Ports, func(p policy.Port) bool {
			return p.Protocol == policy.TCP && p.First <= port && port <= p.Last
		}) || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
			return slices.ContainsFunc(p.Prefixes, func(p netip.Prefix) bool { return p.Contains(client) })
		})
	})
}

// policiesOfNode returns the desired Policies that apply to this node itself, and are not staged.
func (x *examiner) policiesOfNode() (names []string) {
	s := &policy.State{Namespaces: map[string]*policy.Namespace{}}
	var here *policy.Entity
	for _, o := range x.desired.objects {
		switch v := o.Value.(type) {
		case *state.Entity:
			if v.Here {
				here = &v.Entity
			}
		case *state.Namespace:
			s.Namespaces[o.Name] = &v.Namespace
		}
	}
	if here == nil {
		return nil
	}
	if here.Namespace != "" && s.Namespaces[here.Namespace] == nil {
		s.Namespaces[here.Namespace] = &policy.Namespace{}
	}
	for _, o := range x.desired.objects {
		if v, ok := o.Value.(*state.Policy); ok && !v.Staged && s.IsAppliedTo(&v.Policy, here) {
			names = append(names, o.Name)
		}
	}
	return names
}
