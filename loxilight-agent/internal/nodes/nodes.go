// SPDX-License-Identifier: Apache-2.0

// Package nodes translates the nodes of a cluster for the daemon: this node's pod network, its
// uplink, its tunnel, and the other nodes. It is a pure translation, and neither watches nor sends.
package nodes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

// Annotations of nodes.
const (
	// AnnotationUplink names the devices through which the node reaches the others, separated by
	// commas; default: the devices that have the first InternalIP of each family.
	AnnotationUplink = "loxilight.io/uplink"
	// AnnotationUnderlay are the addresses at which the other nodes reach the node; default: its
	// InternalIPs.
	AnnotationUnderlay = "loxilight.io/underlay"
)

// Names of the objects of which each node has one.
const (
	Network = "default" // PodNetwork
	Overlay = "overlay" // Tunnel
	Uplink  = "uplink"  // Interface; with the suffix 4 or 6 for the second family's
)

// Owner is the owner of all objects of the agent.
const Owner = api.OwnerK8s

// uplinksMax is the maximum number of uplinks.
const uplinksMax = 8

// SelfRefs names all objects that Tunnel and Uplinks may return.
func SelfRefs() (tunnel api.ObjectRef, uplinks []api.ObjectRef) {
	uplinks = []api.ObjectRef{{Kind: api.KindInterface, Name: Uplink}, {Kind: api.KindInterface, Name: Uplink + "4"}, {Kind: api.KindInterface, Name: Uplink + "6"}}
	for i := 2; i <= uplinksMax; i++ {
		uplinks = append(uplinks, api.ObjectRef{Kind: api.KindInterface, Name: fmt.Sprintf("%s-%d", Uplink, i)})
	}
	return api.ObjectRef{Kind: api.KindTunnel, Name: Overlay}, uplinks
}

// Tunnel returns the tunnel to other nodes, or no object if the underlay routes pods.
func Tunnel(cfg *config.Config) []api.Object {
	if t := tunnel(cfg); t != nil {
		return []api.Object{object(api.KindTunnel, Overlay, t)}
	}
	return nil
}

// PodNetwork returns the network of the node's pods, or nil if the node has no podCIDRs. A node
// gets its podCIDRs some time after it has joined the cluster. No pod is opened before its policies
// are in force.
func PodNetwork(cfg *config.Config, node *corev1.Node, resolvers []string) (*api.Object, error) {
	cidrs, err := PodCIDRs(node)
	if err != nil || len(cidrs) == 0 {
		return nil, err
	}
	spec := api.PodNetworkSpec{Subnets: cidrs, Policy: api.PolicyRequired, Resolvers: resolvers}
	if cfg.Masquerade.Enabled {
		spec.Masquerade = &api.PodMasquerade{Enabled: true, Except: cfg.Masquerade.Except}
	}
	o := object(api.KindPodNetwork, Network, spec)
	return &o, nil
}

// Peer translates another node. It returns nil if the pod subnets or the address of that node are
// not known yet.
func Peer(cfg *config.Config, node *corev1.Node) (*api.Object, error) {
	cidrs, err := PodCIDRs(node)
	if err != nil || len(cidrs) == 0 {
		return nil, err
	}
	underlay, err := Underlay(node)
	if err != nil || len(underlay) == 0 {
		return nil, err
	}
	spec := api.PeerSpec{Underlay: words(underlay), Prefixes: words(cidrs)}
	if tunnel(cfg) != nil {
		spec.Tunnel = Overlay
	}
	o := object(api.KindPeer, node.Name, spec)
	return &o, nil
}

// PodCIDRs returns the subnets of a node's pods, without host bits.
func PodCIDRs(node *corev1.Node) ([]string, error) {
	list := node.Spec.PodCIDRs
	if len(list) == 0 && node.Spec.PodCIDR != "" {
		list = []string{node.Spec.PodCIDR}
	}
	cidrs := make([]string, 0, len(list))
	for i, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: spec.podCIDRs[%d]: %q is not a prefix", ref(node), i, text)
		}
		cidrs = append(cidrs, p.Masked().String())
	}
	return cidrs, nil
}

// ref names a node in an error.
func ref(node *corev1.Node) string { return "Node/" + node.Name }

// InternalIPs returns the valid addresses of type InternalIP in the status of a Node.
func InternalIPs(node *corev1.Node) (addresses []string) {
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil {
			addresses = append(addresses, ip.Unmap().String())
		}
	}
	return addresses
}

// Underlay returns the addresses at which other nodes reach a node.
func Underlay(node *corev1.Node) ([]string, error) {
	text, ok := node.Annotations[AnnotationUnderlay]
	if !ok {
		return InternalIPs(node), nil
	}
	var addresses []string
	for _, word := range list(text) {
		ip, err := netip.ParseAddr(word)
		if err != nil {
			return nil, fmt.Errorf("%s: annotation %s: %q is not an address", ref(node), AnnotationUnderlay, word)
		}
		addresses = append(addresses, ip.Unmap().String())
	}
	return addresses, nil
}

// Uplinks returns the devices through which a node reaches the others, or no objects if they are
// unknown, as for a node that has no address yet.
func Uplinks(node *corev1.Node) ([]api.Object, error) {
	if text, ok := node.Annotations[AnnotationUplink]; ok {
		devices := list(text)
		if len(devices) == 0 {
			return nil, fmt.Errorf("%s: annotation %s names no device: remove the annotation, or name at least one device", ref(node), AnnotationUplink)
		}
		if len(devices) > uplinksMax {
			return nil, fmt.Errorf("%s: annotation %s names %d devices: at most %d", ref(node), AnnotationUplink, len(devices), uplinksMax)
		}
		var objects []api.Object
		for i, device := range devices {
			name := Uplink
			if i > 0 {
				name = fmt.Sprintf("%s-%d", Uplink, i+1)
			}
			objects = append(objects, object(api.KindInterface, name, api.InterfaceSpec{Device: device, Role: "uplink"}))
		}
		return objects, nil
	}
	return uplinksByAddress(InternalIPs(node)), nil
}

// uplinksByAddress returns an uplink for the first address, and one for the first address of the
// other family, which may be on a different device: the daemon finds the devices.
func uplinksByAddress(addresses []string) (objects []api.Object) {
	first := ""
	for _, a := range addresses {
		name := Uplink
		if is6 := strings.Contains(a, ":"); first != "" {
			if is6 == strings.Contains(first, ":") {
				continue
			}
			name += map[bool]string{true: "6", false: "4"}[is6]
		}
		objects = append(objects, object(api.KindInterface, name, api.InterfaceSpec{Address: a, Role: "uplink"}))
		if first != "" {
			break
		}
		first = a
	}
	return objects
}

// tunnel returns how packets to other nodes are encapsulated, or nil if they are not.
func tunnel(cfg *config.Config) *api.TunnelSpec {
	t := cfg.Tunnel
	if t.Type == "none" {
		return nil
	}
	device := t.Device
	if device == "" {
		const longest = 13
		if device = fmt.Sprintf("hs%s%d", t.Type, t.VNI); len(device) > longest {
			device = "hs" + t.Type
		}
	}
	return &api.TunnelSpec{Device: device, Type: t.Type, VNI: t.VNI, Port: t.Port, MTU: t.MTU}
}

// list splits text at commas and blanks.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func words(s []string) api.Words {
	w := make(api.Words, len(s))
	for i := range s {
		w[i] = api.Word(s[i])
	}
	return w
}

func object(kind, name string, spec any) api.Object {
	raw, err := json.Marshal(spec)
	if err != nil {
		panic(err) // specs are plain data
	}
	return api.Object{Kind: kind, Name: name, Owner: Owner, Spec: raw}
}
