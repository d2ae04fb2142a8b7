// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/loxilight/loxilight/api"
)

// policyScale is the size of a state of network policies. The measured server is a pod beside those
// that are counted here.
type policyScale struct {
	pods     int // of all nodes
	local    int // of them on this node
	policies int // in all
	ofServer int // of them for the server; only the last one allows the measured connections
}

const (
	policyTeams    = 100  // of the other pods: a policy allows a team
	policyServices = 1000 // of the other pods: a policy applies to a service
	policySpaces   = 10   // the namespaces of the other pods

	// allowedSources contains the clients of the measured connections.
	allowedSources = "10.0.0.0/14"
	// deniedPort is a port of the server that no policy allows.
	deniedPort = backendPort + 3
)

func (s *policyScale) addr(pod int) string { return fmt.Sprintf("10.128.%d.%d", pod>>8, pod&255) }

// team returns the team and the port that the i-th policy of a pod allows.
func team(i int) (number, port int) { return i % policyTeams, 1000 + i%50 }

// ofService returns how many policies each service has.
func (s *policyScale) ofService() int { return (s.policies - s.ofServer) / policyServices }

// endpoint returns the name of the Endpoint of a pod of this node.
func endpointOf(pod int) string { return fmt.Sprint("bench/pod-", pod) }

// mustObject is object for a plain struct, which can always be encoded.
func mustObject(kind, name string, spec any) api.Object {
	o, err := object(kind, name, spec)
	if err != nil {
		panic(err)
	}
	return o
}

func matching(label, value string) *api.LabelSelector {
	return &api.LabelSelector{MatchLabels: map[string]string{label: value}}
}

// policyOf allows peers a port of the pods that a label selects.
func policyOf(applied *api.LabelSelector, from api.PolicyPeer, port int, protocols ...string) api.PolicySpec {
	rule := api.IngressRule{Action: "allow", From: []api.PolicyPeer{from}}
	for _, protocol := range protocols {
		rule.Ports = append(rule.Ports, api.PolicyPort{Protocol: protocol, Port: &port})
	}
	return api.PolicySpec{Tier: "main", Isolate: []string{"ingress"}, AppliedTo: []api.EntitySelector{{Entities: applied}}, Ingress: []api.IngressRule{rule}}
}

// entity returns a pod; its label team can be changed.
func (s *policyScale) entity(pod int, team string) api.Object {
	spec := api.EntitySpec{
		Namespace: fmt.Sprint("space-", pod%policySpaces),
		Labels:    map[string]string{"service": fmt.Sprint("s", pod%policyServices), "team": team},
		Addresses: []string{s.addr(pod)},
	}
	if pod < s.local {
		spec.Addresses, spec.Endpoint = nil, &api.EntityEndpoint{Name: endpointOf(pod)}
	}
	return mustObject(api.KindEntity, fmt.Sprint("pod-", pod), spec)
}

// space returns a namespace of pods.
func (s *policyScale) space(number int, stage string) api.Object {
	return mustObject(api.KindNamespace, fmt.Sprint("space-", number), api.NamespaceSpec{Labels: map[string]string{"stage": stage}})
}

// onAll returns a policy that applies to every pod of the node.
func onAll(port int) api.Object {
	spec := policyOf(nil, api.PolicyPeer{Entities: matching("team", "t1")}, port, "tcp")
	return mustObject(api.KindPolicy, "on-all", spec)
}

// objects returns the whole state.
func (s *policyScale) objects() []api.Object {
	order := int32(100)
	all := []api.Object{mustObject(api.KindTier, "main", api.TierSpec{Order: &order, Always: []string{"self", "node"}})}
	for i := range policySpaces {
		all = append(all, s.space(i, "other"))
	}
	for pod := range s.pods {
		all = append(all, s.entity(pod, fmt.Sprint("t", pod%policyTeams)))
	}
	add := func(spec api.PolicySpec) {
		all = append(all, mustObject(api.KindPolicy, fmt.Sprintf("policy-%05d", len(all)), spec))
	}
	server := matching("app", "server")
	gold := &api.NamespaceSelector{MatchLabels: map[string]string{"stage": "gold"}}
	for i := range s.ofServer - 1 {
		t, port := team(i)
		from := api.PolicyPeer{Entities: matching("team", fmt.Sprint("t", t))}
		if i == 0 {
			from = api.PolicyPeer{Namespaces: gold}
		}
		add(policyOf(server, from, port, "tcp"))
	}
	if s.ofServer > 0 {
		add(policyOf(server, api.PolicyPeer{Prefixes: api.Words{allowedSources}}, backendPort, "tcp", "udp"))
	}
	for i := range s.policies - s.ofServer {
		t, port := team(i / policyServices)
		add(policyOf(matching("service", fmt.Sprint("s", i%policyServices)), api.PolicyPeer{Entities: matching("team", fmt.Sprint("t", t))}, port, "tcp"))
	}
	return all
}
