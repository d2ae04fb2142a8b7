// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named returns a service with its own age and cluster IP.
func named(name, ip string, age time.Duration, changes ...func(*corev1.Service)) *corev1.Service {
	s := change(clusterIP(), changes...)
	s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = name, ip, []string{ip}
	s.CreationTimestamp = metav1.NewTime(time.Unix(1_800_000_000, 0).Add(-age))
	return s
}

func keys(list []Key) string {
	var names []string
	for _, k := range list {
		names = append(names, k.String())
	}
	return strings.Join(names, " ")
}

func TestClaims(t *testing.T) {
	n, c := thisNode(), &Claims{}
	holds := func(frontend, want string) {
		t.Helper()
		got, _ := c.Holder(netip.MustParseAddrPort(frontend), corev1.ProtocolTCP)
		if got.Name != want {
			t.Errorf("%s is of %q, want %q", frontend, got.Name, want)
		}
	}
	affects := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s concerns %q, want %q", what, got, want)
		}
	}
	middle := named("middle", "10.96.0.11", time.Hour, externalIPs("203.0.113.9"))
	affects("the first", keys(c.Set(n, middle)), "")
	affects("the same once more", keys(c.Set(n, middle)), "")
	young := named("young", "10.96.0.12", time.Minute, externalIPs("203.0.113.9"))
	affects("a younger one", keys(c.Set(n, young)), "")
	holds("203.0.113.9:80", "middle")
	old := named("old", "10.96.0.13", 2*time.Hour, externalIPs("203.0.113.9"))
	affects("an older one", keys(c.Set(n, old)), "shop/middle")
	holds("203.0.113.9:80", "old")

	// A cluster IP belongs to the Service to which the cluster gave it, although an older one
	// requests it.
	thief := named("thief", "10.96.0.14", 9*time.Hour, externalIPs("10.96.0.12"))
	affects("another's cluster IP", keys(c.Set(n, thief)), "")
	holds("10.96.0.12:80", "young")
	affects("the end of the young one", keys(c.Delete(Key{Namespace: "shop", Name: "young"})), "shop/thief")
	holds("10.96.0.12:80", "thief")
	affects("the young one again", keys(c.Set(n, young)), "shop/thief")

	affects("the old one without it", keys(c.Set(n, named("old", "10.96.0.13", 2*time.Hour))), "shop/middle")
	holds("203.0.113.9:80", "middle")
	affects("another port", keys(c.Set(n, change(named("middle", "10.96.0.11", time.Hour, externalIPs("203.0.113.9")), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }))), "shop/young")
	holds("203.0.113.9:80", "young")
	holds("203.0.113.9:81", "middle")

	// Created again, it is the youngest, and wants the same address.
	affects("recreated", keys(c.Set(n, named("old", "10.96.0.13", 0, externalIPs("203.0.113.9")))), "")
	affects("of the same age", keys(c.Set(n, named("a", "10.96.0.15", time.Minute, externalIPs("203.0.113.9")))), "shop/young")
	holds("203.0.113.9:80", "a")

	for _, name := range []string{"a", "old", "thief", "young", "middle", "unserved"} {
		c.Delete(Key{Namespace: "shop", Name: name})
	}
	if len(c.services)+len(c.holders)+len(c.rivals) > 0 {
		t.Errorf("left: %v %v %v", c.services, c.holders, c.rivals)
	}
}

func TestLostFrontend(t *testing.T) {
	n, c := thisNode(), &Claims{}
	winner := named("api", "10.96.0.11", time.Hour, externalIPs("203.0.113.9"))
	loser := named("web", "10.96.0.12", time.Minute, externalIPs("203.0.113.9", "203.0.113.10"))
	c.Set(n, loser)
	c.Set(n, winner)
	got := TranslateService(n, loser, one("10.244.4.6"), c)
	want(t, render(t, got.Objects), `
		shop/web: 10.96.0.12:80/tcp -> 10.244.4.6:8080
		shop/web/external: 203.0.113.10:80/tcp -> 10.244.4.6:8080 source=snat
	`)
	if len(got.Problems) != 1 || got.Problems[0] != "203.0.113.9:80/tcp belongs to service shop/api" {
		t.Errorf("problems: %q", got.Problems)
	}
	if got := TranslateService(n, winner, nil, c); len(got.Problems) > 0 || !strings.Contains(render(t, got.Objects), "203.0.113.9:80/tcp") {
		t.Errorf("the winner: %q\n%s", got.Problems, render(t, got.Objects))
	}
	// The same address and port with a different protocol is a different frontend.
	udp := named("dns", "10.96.0.13", 0, externalIPs("203.0.113.9"), func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP })
	if affected := c.Set(n, udp); len(affected) > 0 {
		t.Errorf("UDP concerns %v", affected)
	}
}

// TestOneHolderPerFrontend sets and deletes services at random, and compares with a plain search:
// of all Services that want a frontend, which one ranks first?
func TestOneHolderPerFrontend(t *testing.T) {
	rapidCheck(t, func(draw drawer) {
		n, c := thisNode(), &Claims{}
		there := map[Key]*corev1.Service{}
		holders := func() map[string]Key {
			m := map[string]Key{}
			for f := range frontendsOf(n, there) {
				if k, ok := c.Holder(f.addr, f.proto); ok {
					m[f.String()] = k
				}
			}
			return m
		}
		for range draw.count("steps", 20) {
			i := draw.count("service", 5)
			s := named(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", 10+i), time.Duration(draw.count("age", 2))*time.Hour)
			key := Key{Namespace: s.Namespace, Name: s.Name}
			for range draw.count("external", 2) {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, draw.pick("ip", "203.0.113.1", "203.0.113.2", "10.96.0.11", "10.96.0.12"))
			}
			before := holders()
			var affected []Key
			if draw.yes("delete") {
				affected = c.Delete(key)
				delete(there, key)
			} else {
				affected = c.Set(n, s)
				there[key] = s
			}
			after := holders()
			for f, contenders := range frontendsOf(n, there) {
				if after[f.String()] != contenders {
					draw.Fatalf("%s is of %v, want %v", f, after[f.String()], contenders)
				}
			}
			for f, k := range after {
				for _, other := range []Key{before[f], k} {
					if before[f] != k && other != key && other != (Key{}) && !slices.Contains(affected, other) {
						draw.Fatalf("%s went from %v to %v, and not all are reported: %v", f, before[f], k, affected)
					}
				}
			}
		}
	})
}

// frontendsOf returns all frontends with the service that is to have each.
func frontendsOf(n *Node, all map[Key]*corev1.Service) map[frontend]Key {
	first := map[frontend]*corev1.Service{}
	gave := func(f frontend, s *corev1.Service) bool { return s.Spec.ClusterIP == f.addr.Addr().String() }
	for _, s := range all {
		for _, text := range append([]string{s.Spec.ClusterIP}, s.Spec.ExternalIPs...) {
			f := frontend{netip.AddrPortFrom(addr(text), 80), corev1.ProtocolTCP}
			rival := first[f]
			switch {
			case rival == nil || gave(f, s) && !gave(f, rival):
			case gave(f, rival) && !gave(f, s):
				continue
			case s.CreationTimestamp.After(rival.CreationTimestamp.Time):
				continue
			case s.CreationTimestamp.Equal(&rival.CreationTimestamp) && s.Name > rival.Name:
				continue
			}
			first[f] = s
		}
	}
	out := map[frontend]Key{}
	for f, s := range first {
		out[f] = Key{Namespace: s.Namespace, Name: s.Name}
	}
	return out
}
