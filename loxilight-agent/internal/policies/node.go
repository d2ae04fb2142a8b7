// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
)

// labelHere is a label of this node's Entity alone. Kubernetes permits no label of this name.
const labelHere = "/here"

// The limits of the daemon on an Entity.
const labelsMax, addressesMax = 64, 64

// NodeAddresses decides which of several nodes has an address: the youngest, of several the first by
// name. The zero value has no nodes. It is not safe for concurrent use.
type NodeAddresses struct {
	nodes  map[string]nodeClaims
	claims map[netip.Addr][]string // names of nodes
}

type nodeClaims struct {
	addresses []netip.Addr
	created   int64 // Unix time in seconds
}

// Set replaces the node of a name; nil removes it. It returns the names of the other nodes that gained
// or lost an address as a result.
func (a *NodeAddresses) Set(name string, n *corev1.Node) (affected []string) {
	if a.nodes == nil {
		a.nodes, a.claims = map[string]nodeClaims{}, map[netip.Addr][]string{}
	}
	before := a.nodes[name]
	var now nodeClaims
	if n != nil {
		now = nodeClaims{nodeAddresses(n), n.CreationTimestamp.Unix()}
	}
	owners := map[netip.Addr]string{}
	for _, ip := range append(slices.Clone(before.addresses), now.addresses...) {
		owners[ip] = a.owner(ip)
	}
	for _, ip := range before.addresses {
		a.claims[ip] = slices.DeleteFunc(a.claims[ip], func(other string) bool { return other == name })
		if len(a.claims[ip]) == 0 {
			delete(a.claims, ip)
		}
	}
	delete(a.nodes, name)
	if n != nil {
		a.nodes[name] = now
		for _, ip := range now.addresses {
			a.claims[ip] = append(a.claims[ip], name)
		}
	}
	for ip, was := range owners {
		is := a.owner(ip)
		for _, other := range []string{was, is} {
			if was != is && other != name && other != "" && !slices.Contains(affected, other) {
				affected = append(affected, other)
			}
		}
	}
	return affected
}

// owner returns the name of the node that has an address; empty: none.
func (a *NodeAddresses) owner(ip netip.Addr) string {
	list := a.claims[ip]
	if len(list) == 0 {
		return ""
	}
	return slices.MinFunc(list, func(p, q string) int {
		return cmp.Or(cmp.Compare(a.nodes[q].created, a.nodes[p].created), strings.Compare(p, q))
	})
}

// nodeAddresses returns the addresses of a node that may be addresses of an Entity.
func nodeAddresses(n *corev1.Node) (list []netip.Addr) {
	for _, address := range n.Status.Addresses {
		ip, err := netip.ParseAddr(address.Address) // others are names
		ip = ip.Unmap()
		if err == nil && ip.Zone() == "" && ip.IsGlobalUnicast() && !slices.Contains(list, ip) {
			list = append(list, ip)
		}
	}
	return list
}

// NodeEntities translates a node. named are the names of labels by which policies select nodes: if a
// node has more labels than an Entity may have, its Entity has these. This node's own traffic is
// identified by its origin, so the Entity of this node has no addresses; an address at which only
// other machines translate to this node belongs to a second Entity.
func (n *Node) NodeEntities(node *corev1.Node, owners *NodeAddresses, named map[string]bool) []api.Object {
	labels := nodeLabels(node, named)
	internal := func(ip netip.Addr) bool {
		return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
			own, err := netip.ParseAddr(a.Address)
			return err == nil && own.Unmap() == ip && a.Type == corev1.NodeInternalIP
		})
	}
	spec := api.EntitySpec{Set: SetNodes, Labels: labels}
	for _, ip := range nodeAddresses(node) {
		isOurs := slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Contains(ip) }) || node.Name == n.Name && internal(ip)
		if owners.owner(ip) == node.Name && !isOurs && len(spec.Addresses) < addressesMax {
			spec.Addresses = append(spec.Addresses, ip.String())
		}
	}
	var objects []api.Object
	name := NodeName(node.Name)
	if node.Name == n.Name {
		own := api.EntitySpec{Set: SetNodes, Labels: maps.Clone(labels), Here: true}
		if own.Labels == nil {
			own.Labels = map[string]string{}
		}
		own.Labels[labelHere] = "true"
		objects = append(objects, object(api.KindEntity, name, nil, own))
		name = externalName(node.Name)
	}
	if len(spec.Addresses) > 0 {
		objects = append(objects, object(api.KindEntity, name, nil, spec))
	}
	return objects
}

// nodeLabels returns the labels of a node's Entity: first those that are named, then the others in
// the order of their names.
func nodeLabels(n *corev1.Node, named map[string]bool) map[string]string {
	const most = labelsMax - 1 // with room for labelHere
	keys := slices.Collect(maps.Keys(n.Labels))
	slices.SortFunc(keys, func(a, b string) int {
		if x, y := named[labelKey(a)], named[labelKey(b)]; x != y {
			if x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	if len(keys) == 0 {
		return nil
	}
	labels := make(map[string]string, min(len(keys), most))
	for _, key := range keys[:min(len(keys), most)] {
		if key != labelHere {
			labels[labelKey(key)] = n.Labels[key]
		}
	}
	return labels
}

// NodeRefs names all objects that NodeEntities may return for this node.
func NodeRefs(name string) []api.ObjectRef {
	return []api.ObjectRef{{Kind: api.KindEntity, Name: NodeName(name)}, {Kind: api.KindEntity, Name: externalName(name)}}
}

// externalName returns the name of the Entity of addresses that only other machines translate to this
// node.
func externalName(name string) string { return shorten("node-external/"+name, nameMax) }
