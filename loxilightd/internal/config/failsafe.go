// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// defaultFailsafe returns the defaults of policy.failsafe.in and policy.failsafe.out: logins, BGP, etcd,
// the API server and the kubelet, and what the node needs to get its address and resolve names.
func defaultFailsafe() (all [2][]policy.Rule) {
	for d, words := range [2][]string{
		policy.Ingress: {"tcp/22", "tcp/179", "tcp/2379-2380", "tcp/6443", "tcp/10250", "udp/68"},
		policy.Egress:  {"udp/53", "udp/67", "tcp/53", "tcp/179", "tcp/2379-2380", "tcp/6443"},
	} {
		for _, word := range words {
			r, err := parseFailsafe(word)
			if err != nil {
				panic(err)
			}
			all[d] = append(all[d], r)
		}
	}
	return all
}

// failsafe returns a key whose value is a list of ports, addresses and prefixes.
func failsafe(name string, d policy.Direction) key {
	return key{
		name: name, live: true,
		get: func(*Config) any { return nil },
		list: func(r *reader, c *Config, name string, n *yaml.Node) {
			c.Failsafe[d] = nil
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				return
			}
			seen := map[string]bool{}
			r.words(name, n, func(word string) error {
				rule, err := parseFailsafe(word)
				if err == nil && seen[rule.ID] {
					err = fmt.Errorf("%q is listed twice", word)
				}
				if err == nil {
					seen[rule.ID] = true
					c.Failsafe[d] = append(c.Failsafe[d], rule)
				}
				return err
			})
		},
	}
}

// parseFailsafe returns the rule for a word: a protocol with a port or a range of ports, or an address
// or prefix of the other end.
func parseFailsafe(word string) (r policy.Rule, err error) {
	r = policy.Rule{ID: word, Action: policy.Allow}
	name, ports, hasPorts := strings.Cut(word, "/")
	protocol, known := datapath.ParseProtocol(name)
	switch {
	case known && !policy.Protocol(protocol).HasPorts():
		return r, fmt.Errorf("%q has no ports: list tcp, udp or sctp with a port, such as tcp/22, or an address or prefix", name)
	case known && !hasPorts:
		return r, fmt.Errorf("%q lacks a port: list a port such as %s/22, or a range such as %[2]s/8000-8010", word, name)
	case known:
		span, err := parsePorts(ports)
		if err != nil {
			return r, err
		}
		r.Ports = []policy.Port{{Protocol: policy.Protocol(protocol), First: span.First, Last: span.Last}}
		return r, nil
	}
	var prefixes []netip.Prefix
	if err := addPrefix(&prefixes, word); err != nil {
		return r, fmt.Errorf("%q is neither a port, such as tcp/22, nor an address or prefix: %w", word, err)
	}
	r.Peers = []policy.Peer{{Prefixes: prefixes}}
	return r, nil
}
