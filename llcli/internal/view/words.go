// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"sync"
)

// word is a word that the daemon uses in its answers.
type word struct {
	name    string
	meaning string // in one line
	advice  string // what to do, if anything
}

// vocabulary is a set of words and the title of their column.
type vocabulary struct {
	title string
	fixed []word
	read  func() []word // nil: the words are fixed. Few commands need the others.
}

func (v *vocabulary) words() []word {
	if v.read != nil {
		return v.read()
	}
	return v.fixed
}

var (
	dropWords       = vocabulary{title: "DROPPED", read: sync.OnceValue(func() []word { return reasons("DROP_", dropAdvice) })}
	verdictWords    = vocabulary{title: "VERDICT", read: sync.OnceValue(func() []word { return reasons("VERDICT_", verdictAdvice) })}
	connectionWords = vocabulary{title: "CONNECTION", fixed: []word{
		{"syn-sent", "the client asked for a connection; no answer yet", ""},
		{"syn-received", "the backend answered; the client has not confirmed yet", ""},
		{"established", "open in both directions", ""},
		{"fin-wait", "one side has closed", ""},
		{"time-wait", "both sides have closed; late packets still find it", ""},
		{"closed", "ended by a reset", ""},
		{"unreplied", "packets seen in one direction only so far (UDP, ICMP)", ""},
		{"one-way", "the client continues to send for more than 2 s without an answer (UDP)", ""},
		{"replied", "packets seen in both directions (UDP, ICMP)", ""},
	}}
	objectWords = vocabulary{title: "OBJECT", fixed: []word{
		{"Pending", "not applied by the data plane yet, or an object or device that it needs is missing; the message names it",
			"llcli describe KIND NAME"},
		{"Ready", "the data plane has applied it", ""},
		{"Error", "the data plane cannot apply it; it is retried",
			"llcli describe KIND NAME shows the message"},
	}}
	findingWords = vocabulary{title: "FINDING", read: sync.OnceValue(func() []word { return findings() })}
	vocabularies = []*vocabulary{&roleWords, &ruleWords, &backendWords, &dropWords, &verdictWords, &connectionWords, &objectWords, &findingWords}
)

// find returns the word with a name, or nil if no such word exists.
func (v *vocabulary) find(name string) *word {
	words := v.words()
	for i := range words {
		if strings.EqualFold(words[i].name, name) || strings.EqualFold(words[i].name, strings.ReplaceAll(name, "-", "_")) {
			return &words[i]
		}
	}
	return nil
}

// meaning returns the meaning of a name, or an empty string if this llcli does not know the name.
func (v *vocabulary) meaning(name string) string {
	if w := v.find(name); w != nil {
		return w.meaning
	}
	return ""
}

// roleWords are the roles of Interfaces.
var roleWords = vocabulary{title: "ROLE", fixed: []word{
	{"uplink", "a device towards the rest of the network, or towards clients: the default. Masquerading and the MTU of pods go by uplinks",
		"the WAN side and the LAN side of a gateway are both uplinks"},
	{"port", "a device behind which one pod, VM or server is", ""},
	{"host", "the host's own end of its link to the switch", ""},
	{"tunnel", "a device of a tunnel; devices of Tunnels need no Interface", ""},
}}

// ruleWords are values of fields of FirewallRules and NATs.
var ruleWords = vocabulary{title: "RULE", fixed: []word{
	{"allow", "of a FirewallRule: the packet passes, and its replies too unless stateful is false", ""},
	{"deny", "of a FirewallRule: the packet is dropped silently", "llcli events drops --of firewall/NAME shows such packets"},
	{"reject", "of a FirewallRule: the packet is dropped, and its sender gets a reset, an SCTP ABORT or an ICMP error", ""},
	{"forward", "a hook: packets that are routed or bridged through the node", ""},
	{"input", "a hook: packets to the node itself", ""},
	{"output", "a hook: packets from the node itself", ""},
	{"local", "in source and destination of rules: the current addresses of the node, except loopback and link-local addresses", ""},
	{"masquerade", "a NAT: the source becomes the address of the output device",
		"llcli nat add out --masquerade --out eth0"},
	{"snat", "a NAT: the source becomes an address of to.addresses", "llcli nat add out --snat --out eth0 --to 192.0.2.10"},
	{"dnat", "a NAT: the destination becomes an address of to.addresses: a port forward",
		"llcli nat add web --dnat --in eth0 --destination local --protocol tcp --port 8080 --to 10.0.0.7:80"},
}}

// backendWords are states of backends, as configured and as observed.
var backendWords = vocabulary{title: "BACKEND", fixed: []word{
	{"active", "gets new connections; the default", ""},
	{"draining", "keeps its connections and gets no new ones, unless the Service has no other backends",
		"llcli service drain NAME ADDRESS --undo ends it"},
	{"down", "gets no new connections, and its UDP connections end at once; others continue", ""},
	{"healthy", "its health check succeeds", ""},
	{"unhealthy", "its health check fails: it counts as down until it succeeds again", "llcli describe service NAME shows the reason"},
	{"unknown", "no result of a health check yet, or no health check", ""},
}}
