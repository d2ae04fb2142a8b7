// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

func node(name string, annotations map[string]string, addresses []string, cidrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func text(objects []api.Object) string {
	var lines []string
	for _, o := range objects {
		lines = append(lines, o.Kind+"/"+o.Name+" "+string(o.Spec))
	}
	return strings.Join(lines, "\n")
}

func TestSelf(t *testing.T) {
	cfg := config.Default()
	gre := config.Default()
	gre.Tunnel = config.Tunnel{Type: "gre", VNI: 4026531839, MTU: 1400}
	bare := config.Default()
	bare.Tunnel.Type, bare.Masquerade.Enabled = "none", false
	both := node("n1", nil, []string{"192.0.2.7", "2001:db8::7"}, "10.244.3.5/24", "2001:db8:3::/64")
	for _, test := range []struct {
		cfg  *config.Config
		node *corev1.Node
		want string
	}{
		{cfg, both, `Interface/uplink {"address":"192.0.2.7","role":"uplink"}
Interface/uplink6 {"address":"2001:db8::7","role":"uplink"}
Tunnel/overlay {"device":"hsvxlan100","type":"vxlan","vni":100}
PodNetwork/default {"subnets":["10.244.3.0/24","2001:db8:3::/64"],"masquerade":{"enabled":true},"policy":"required"}`},
		{bare, node("n1", map[string]string{AnnotationUplink: "eth1, bond0"}, []string{"192.0.2.7"}, "10.244.3.0/24"), `Interface/uplink {"device":"eth1","role":"uplink"}
Interface/uplink-2 {"device":"bond0","role":"uplink"}
PodNetwork/default {"subnets":["10.244.3.0/24"],"policy":"required"}`},
		{bare, node("n1", nil, []string{"2001:db8::7", "2001:db8::8", "192.0.2.7", "192.0.2.8"}, "10.244.3.0/24"), `Interface/uplink {"address":"2001:db8::7","role":"uplink"}
Interface/uplink4 {"address":"192.0.2.7","role":"uplink"}
PodNetwork/default {"subnets":["10.244.3.0/24"],"policy":"required"}`},
		{gre, node("n1", nil, nil), `Tunnel/overlay {"device":"hsgre","type":"gre","vni":4026531839,"mtu":1400}`},
	} {
		got, err := Uplinks(test.node)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, Tunnel(test.cfg)...)
		network, err := PodNetwork(test.cfg, test.node, nil)
		if err != nil {
			t.Fatal(err)
		}
		if network != nil {
			got = append(got, *network)
		}
		if text(got) != test.want {
			t.Errorf("got\n%s\nwant\n%s", text(got), test.want)
		}
	}
}

func TestPeer(t *testing.T) {
	cfg, routed := config.Default(), config.Default()
	routed.Tunnel.Type = "none"
	for _, test := range []struct {
		cfg  *config.Config
		node *corev1.Node
		want string // empty: no Peer
	}{
		{cfg, node("n2.example", nil, []string{"192.0.2.8", "2001:db8::8"}, "10.244.4.0/24", "2001:db8:4::/64"),
			`Peer/n2.example {"underlay":["192.0.2.8","2001:db8::8"],"prefixes":["10.244.4.0/24","2001:db8:4::/64"],"tunnel":"overlay"}`},
		{routed, node("n2", map[string]string{AnnotationUnderlay: "198.51.100.8"}, []string{"192.0.2.8"}, "10.244.4.0/24"),
			`Peer/n2 {"underlay":["198.51.100.8"],"prefixes":["10.244.4.0/24"]}`},
		{cfg, node("n2", nil, []string{"192.0.2.8"}), ""},
		{cfg, node("n2", nil, nil, "10.244.4.0/24"), ""},
	} {
		got, err := Peer(test.cfg, test.node)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case got == nil && test.want != "":
			t.Errorf("none, want %s", test.want)
		case got != nil && text([]api.Object{*got}) != test.want:
			t.Errorf("got %s\nwant %s", text([]api.Object{*got}), test.want)
		}
	}
}

func TestWrongNodesAreNamed(t *testing.T) {
	for _, n := range []*corev1.Node{
		node("bad", map[string]string{AnnotationUnderlay: "nowhere"}, nil, "10.244.4.0/24"),
		node("bad", nil, []string{"192.0.2.8"}, "10.244.4/24"),
	} {
		if o, err := Peer(config.Default(), n); err == nil || o != nil || !strings.HasPrefix(err.Error(), "Node/bad: ") {
			t.Errorf("%v, %v", o, err)
		}
	}
	if _, err := Uplinks(node("bad", map[string]string{AnnotationUplink: " , "}, nil)); err == nil || !strings.Contains(err.Error(), AnnotationUplink) {
		t.Errorf("%v", err)
	}
	many := strings.Repeat("eth0,", uplinksMax+1)
	if _, err := Uplinks(node("bad", map[string]string{AnnotationUplink: many}, nil)); err == nil || !strings.Contains(err.Error(), AnnotationUplink) {
		t.Errorf("%v", err)
	}
}
