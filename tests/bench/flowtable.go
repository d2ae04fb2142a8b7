// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// flowtableRules offload to a flowtable the connections that the kernel's connection tracking
// knows; packets that bypass the flowtable are counted.
const flowtableRules = `
table inet bench {
	counter slow { }
	flowtable f { hook ingress priority 0; devices = { up0, up1, pod0 }; }
	chain forward {
		type filter hook forward priority 0;
		counter name slow
		meta l4proto { tcp, udp } ct state established flow add @f
	}
}
`

// flowtableText describes this path.
const flowtableText = "\n" +
	"**nftables flowtable** is kernel routing with connection tracking, and a flowtable on\n" +
	"all ports of the node that takes over every connection once it is established. During\n" +
	"the measurement, conntrack listed all connections as `[OFFLOAD]`, and the chain\n" +
	"`forward` counted only the first and last packets of TCP connections."

// attachFlowtable adds a flowtable to the node.
func (r *rig) attachFlowtable() error {
	if err := (&nftables{rig: r}).keepUDP(); err != nil {
		return err
	}
	if err := r.node.sysctl("netfilter/nf_flowtable_udp_timeout", "3600"); err != nil {
		return err
	}
	return r.node.run(flowtableRules, "nft", "-f", "-")
}

// flowtableIn reports whether this kernel supports flowtables in an nftables family.
func flowtableIn(family string) bool {
	ns, err := newNamespace()
	if err != nil {
		return false
	}
	defer ns.close()
	rules := fmt.Sprintf("table %s bench {\n\tflowtable f { hook ingress priority 0; devices = { lo }; }\n}\n", family)
	return ns.run(rules, "nft", "-f", "-") == nil
}

// bridgeFlowtable explains why a bridge has no flowtable on a kernel where a router has one.
func bridgeFlowtable() string {
	if !flowtableIn("inet") || flowtableIn("bridge") {
		return ""
	}
	return "\n" +
		"There is no flowtable here: this kernel rejects a flowtable in the family `bridge`,\n" +
		"and a flowtable in the family `inet` forwards by routes, which a bridge does not\n" +
		"have."
}

// slowPackets returns how many packets took the path that the flowtable bypasses.
func (r *rig) slowPackets() (uint64, error) {
	out, err := r.node.output("", "nft", "-j", "list", "counter", "inet", "bench", "slow")
	if err != nil {
		return 0, err
	}
	var list struct {
		Nftables []struct {
			Counter *struct{ Packets uint64 }
		}
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return 0, fmt.Errorf("counter of the flowtable's chain: %w", err)
	}
	for _, entry := range list.Nftables {
		if entry.Counter != nil {
			return entry.Counter.Packets, nil
		}
	}
	return 0, errors.New("the counter of the flowtable's chain is not listed")
}

// wantOffloaded fails if a flowtable has offloaded fewer connections than the given number.
func wantOffloaded(rigs []*rig, connections int) error {
	for _, r := range rigs {
		if r.name != pathFlowtable {
			continue
		}
		var listed []byte
		err := r.node.do(func() (err error) {
			listed, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
			return err
		})
		if err != nil {
			return fmt.Errorf("read the offloaded connections: %w", err)
		}
		if has := bytes.Count(listed, []byte("[OFFLOAD]")); has < connections {
			return fmt.Errorf("%s: %d of %d connections are offloaded", r.name, has, connections)
		}
	}
	return nil
}
