// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

func prefixes(list []string) (parsed []netip.Prefix) {
	for _, text := range list {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

func podNetwork(name string, subnets ...string) *Object {
	return &Object{Key: Key{KindPodNetwork, name}, Owner: "k8s", Spec: fmt.Sprint(subnets), Value: &PodNetwork{Bridge: "hsvlan110", Subnets: prefixes(subnets)}}
}

func peer(name string, list ...string) *Object {
	return &Object{Key: Key{KindPeer, name}, Owner: "k8s", Spec: fmt.Sprint(list), Value: &Peer{Peer: datapath.Peer{Prefixes: prefixes(list)}}}
}

func routeTo(peer, prefix string) *Object {
	return &Object{Key: Key{KindRoute, "r"}, Owner: "k8s", Spec: prefix, Value: &Route{Route: datapath.Route{Prefix: netip.MustParsePrefix(prefix)}, Peer: peer}}
}

// TestPodsAreHereOrThere: a local pod subnet cannot be behind a Peer, whichever was configured
// first. Exceptions are the single addresses of pods that have moved, and wider prefixes, because
// the longest match wins.
func TestPodsAreHereOrThere(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	one := func(o ...*Object) *Transaction { return &Transaction{Put: o} }
	commit(t, s, one(podNetwork("pods", "10.7.1.0/24", "2001:db8:7::/64"), peer("far", "10.7.0.0/16", "10.8.1.0/24")))
	for _, c := range []struct {
		o                *Object
		key, field, text string
	}{
		{peer("a", "10.9.0.0/24", "10.7.1.0/24"), "Peer/a", "spec.prefixes[1]", "10.7.1.0/24 is spec.subnets[0] of PodNetwork/pods"},
		{peer("a", "10.7.1.128/25"), "Peer/a", "spec.prefixes[0]", "10.7.1.128/25 is part of 10.7.1.0/24, spec.subnets[0] of PodNetwork/pods"},
		{peer("a", "2001:db8:7::/64"), "Peer/a", "spec.prefixes[0]", "spec.subnets[1] of PodNetwork/pods"},
		{peer("a", "10.7.1.1/32"), "Peer/a", "spec.prefixes[0]", "10.7.1.1/32 is reserved for the switch or the node in 10.7.1.0/24, spec.subnets[0] of PodNetwork/pods"},
		{peer("a", "2001:db8:7::2/128"), "Peer/a", "spec.prefixes[0]", "spec.subnets[1] of PodNetwork/pods"},
		{routeTo("far", "10.7.1.0/25"), "Route/r", "spec.prefix", "spec.subnets[0] of PodNetwork/pods"},
		{podNetwork("more", "10.9.0.0/24", "2001:db8:8::/64"), "", "", ""},
		{podNetwork("yet", "10.8.1.0/24"), "PodNetwork/yet", "spec.subnets[0]", "10.8.1.0/24 is spec.prefixes[1] of Peer/far"},
		{podNetwork("yet", "10.8.0.0/16"), "PodNetwork/yet", "spec.subnets[0]", "10.8.1.0/24, spec.prefixes[1] of Peer/far, is part of 10.8.0.0/16"},
		{peer("b", "10.7.1.9/32", "2001:db8:7::9/128", "10.7.0.0/23", "0.0.0.0/0"), "", "", ""},
		{routeTo("far", "::/0"), "", "", ""},
		{&Object{Key: Key{KindRoute, "x"}, Owner: "cli", Spec: "x", Value: &Route{Route: datapath.Route{Prefix: netip.MustParsePrefix("10.7.1.0/24"), Switch: true}}}, "", "", ""},
	} {
		if c.key == "" {
			commit(t, s, one(c.o))
		} else {
			wantRefusal(t, s, one(c.o), Conflict, c.key, c.field, c.text)
		}
	}
	// Within one change, a prefix can move from one object to the other.
	commit(t, s, one(podNetwork("pods", "10.8.1.0/24"), peer("far", "10.7.1.0/24")))
}

// TestPodsKeepTheirNetwork: a network with pods can neither be deleted nor lose the pods'
// addresses.
func TestPodsKeepTheirNetwork(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	pod := func(name string, n byte, network string, addrs ...string) *Object {
		o := endpoint(name, "hs"+name, n, addrs...)
		o.Owner, o.Spec, o.Value.(*Endpoint).Network = OwnerCNI, fmt.Sprint(addrs), network
		return o
	}
	commit(t, s, &Transaction{Put: []*Object{
		podNetwork("pods", "10.7.1.0/24"), podNetwork("other", "10.9.1.0/24"),
		pod("a", 1, "pods", "10.7.1.9"), pod("b", 2, "pods", "10.7.1.200"), pod("c", 3, "", "10.7.1.10"), pod("d", 4, "pods", "192.0.2.7"),
	}})
	change := func(subnets ...string) *Transaction {
		return &Transaction{Put: []*Object{podNetwork("pods", subnets...)}}
	}
	drop := &Transaction{Delete: []Key{{KindPodNetwork, "pods"}}}
	wantRefusal(t, s, change("10.7.2.0/24"), Conflict, "PodNetwork/pods", "spec.subnets", "3 Endpoints would have addresses outside all subnets, the first is Endpoint/a with 10.7.1.9: ")
	wantRefusal(t, s, change("10.7.1.0/25"), Conflict, "PodNetwork/pods", "spec.subnets", "1 Endpoint would have an address outside all subnets, Endpoint/b with 10.7.1.200: ")
	wantRefusal(t, s, change("2001:db8:7::/64"), Conflict, "PodNetwork/pods", "spec.subnets", "3 Endpoints")
	wantRefusal(t, s, drop, Conflict, "PodNetwork/pods", "", "4 Endpoints are in it, the first is Endpoint/a: ")
	wantRefusal(t, s, &Transaction{Replace: &Scope{Owner: "k8s", Kinds: []string{KindPodNetwork}}, Put: []*Object{podNetwork("other", "10.9.1.0/24")}},
		Conflict, "PodNetwork/pods", "", "4 Endpoints are in it")
	commit(t, s, change("10.7.1.0/24", "2001:db8:7::/64"))
	commit(t, s, change("10.7.0.0/16", "2001:db8:7::/64"))
	commit(t, s, change("10.7.1.0/24"))
	commit(t, s, &Transaction{Delete: []Key{{KindPodNetwork, "other"}}})
	commit(t, s, &Transaction{Put: change("10.7.1.0/25").Put, Delete: []Key{{KindEndpoint, "b"}}})
	commit(t, s, &Transaction{Put: []*Object{pod("a", 1, "pods", "192.0.2.8")}, Delete: []Key{{KindEndpoint, "c"}}})
	commit(t, s, change("10.7.2.0/24")) // addresses outside the network's subnets do not matter
	wantRefusal(t, s, drop, Conflict, "PodNetwork/pods", "", "2 Endpoints are in it, the first is Endpoint/a: ")
	commit(t, s, &Transaction{Delete: []Key{{KindPodNetwork, "pods"}, {KindEndpoint, "a"}, {KindEndpoint, "d"}}})
}
