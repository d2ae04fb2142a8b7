// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
)

// The other implementations of network policies enforce what the state says about the server, and have
// chains for all pods of the node. They route between pods, and accept packets of known connections
// first.

// nftablesPolicies has a verdict map by pod, a chain for each pod and a named set for each team.
func nftablesPolicies(s *policyScale) string {
	var sets, chains, pods strings.Builder
	for t := range policyTeams {
		fmt.Fprintf(&sets, "\tset team-%d { type ipv4_addr; elements = { %s } }\n", t, strings.Join(s.ofTeam(t), ", "))
	}
	chain := func(name, addr, last string, policies int) {
		fmt.Fprintf(&chains, "\tchain %s {\n", name)
		for i := range policies {
			t, port := team(i)
			fmt.Fprintf(&chains, "\t\tip saddr @team-%d tcp dport %d accept\n", t, port)
		}
		fmt.Fprintf(&chains, "%s\t\tdrop\n\t}\n", last)
		fmt.Fprintf(&pods, "%s : jump %s, ", addr, name)
	}
	for pod := range s.local {
		chain(fmt.Sprint("pod-", pod), s.addr(pod), "", s.ofService())
	}
	last := fmt.Sprintf("\t\tip saddr %s meta l4proto { tcp, udp } th dport %d accept\n", allowedSources, backendPort)
	for i := range backendCount {
		chain(fmt.Sprint("server-", i), addressAt(backendFirst[onNode], i), last, s.ofServer-1)
	}
	return fmt.Sprintf("table ip policies {\n%s%s\tmap pods { type ipv4_addr : verdict; elements = { %s } }\n"+
		"\tchain forward {\n\t\ttype filter hook forward priority filter\n\t\tct state established,related accept\n\t\tip daddr vmap @pods\n\t}\n}\n",
		sets.String(), chains.String(), strings.TrimSuffix(pods.String(), ", "))
}

// ofTeam returns the addresses of the pods of a team.
func (s *policyScale) ofTeam(number int) (addrs []string) {
	for pod := number; pod < s.pods; pod += policyTeams {
		addrs = append(addrs, s.addr(pod))
	}
	return addrs
}

func (r *rig) attachNftablesPolicies(s *policyScale) error {
	return errors.Join((&nftables{rig: r}).keepUDP(), r.node.run(nftablesPolicies(s), "nft", "-f", "-"))
}

// iptablesPolicies has an ipset for each team, and a chain for each pod and for each policy, as Calico and
// kube-router have. The server is first among the pods.
func iptablesPolicies(s *policyScale) (sets, rules string) {
	var set, names, body, dispatch strings.Builder
	for t := range policyTeams {
		fmt.Fprintf(&set, "create team-%d hash:net family inet\n", t)
		for _, addr := range s.ofTeam(t) {
			fmt.Fprintf(&set, "add team-%d %s\n", t, addr)
		}
	}
	fmt.Fprintf(&set, "create allowed hash:net family inet\nadd allowed %s\n", allowedSources)
	policy := func(name, from, protocol string, port int) {
		fmt.Fprintf(&names, ":%s - [0:0]\n", name)
		fmt.Fprintf(&body, "-A %s -m set --match-set %s src -p %s -m %s --dport %d -j MARK --set-xmark 0x10000/0x10000\n", name, from, protocol, protocol, port)
	}
	pod := func(name string, addrs []string, policies []string) {
		fmt.Fprintf(&names, ":%s - [0:0]\n", name)
		for _, p := range policies {
			fmt.Fprintf(&body, "-A %s -j %s\n-A %s -m mark --mark 0x10000/0x10000 -j ACCEPT\n", name, p, name)
		}
		fmt.Fprintf(&body, "-A %s -j DROP\n", name)
		for _, addr := range addrs {
			fmt.Fprintf(&dispatch, "-A FORWARD -d %s/32 -j %s\n", addr, name)
		}
	}
	allow := func(name string, i int) string {
		t, port := team(i)
		policy(name, fmt.Sprint("team-", t), "tcp", port)
		return name
	}
	var ofServer []string
	for i := range s.ofServer - 1 {
		ofServer = append(ofServer, allow(fmt.Sprint("policy-server-", i), i))
	}
	policy("policy-last", "allowed", "tcp", backendPort)
	fmt.Fprintf(&body, "-A policy-last -m set --match-set allowed src -p udp -m udp --dport %d -j MARK --set-xmark 0x10000/0x10000\n", backendPort)
	var servers []string
	for i := range backendCount {
		servers = append(servers, addressAt(backendFirst[onNode], i))
	}
	pod("pod-server", servers, append(ofServer, "policy-last"))
	for n := range s.local {
		var list []string
		for i := range s.ofService() {
			list = append(list, allow(fmt.Sprintf("policy-%d-%d", n, i), i))
		}
		pod(fmt.Sprint("pod-", n), []string{s.addr(n)}, list)
	}
	return set.String(), fmt.Sprintf("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n%s"+
		"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n%s%sCOMMIT\n", names.String(), dispatch.String(), body.String())
}

func (r *rig) attachIptables(s *policyScale) error {
	sets, rules := iptablesPolicies(s)
	return errors.Join((&nftables{rig: r}).keepUDP(), r.node.run(sets, "ipset", "restore"), r.node.run(rules, "iptables-restore"))
}
