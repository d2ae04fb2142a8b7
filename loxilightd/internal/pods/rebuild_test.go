// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// tear truncates the record of a container, as a power failure might.
func (n *node) tear(container string) {
	n.t.Helper()
	if err := os.Truncate(n.recordPath(ownerOf(n.params(api.CNIDel, container, nil))), 100); err != nil {
		n.t.Fatal(err)
	}
}

// wantProblem fails the test unless there is exactly one problem, which contains all words.
func (n *node) wantProblem(words ...string) {
	n.t.Helper()
	p := n.Problems()
	if len(p) != 1 || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(p[0], w) }) {
		n.t.Errorf("problems: %q, want one with %q", p, words)
	}
}

// TestTornRecord: a pod with a damaged record continues unchanged.
func TestTornRecord(t *testing.T) {
	n := newNode(t)
	ports := map[string]any{"runtimeConfig": map[string]any{"portMappings": []map[string]any{
		{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.17"}}}}
	n.mustAdd("torn", ports)
	n.mustAdd("whole", nil)
	was := *n.pods[ownerOf(n.params(api.CNIDel, "torn", nil))]
	objects := map[api.ObjectRef]string{}
	for ref, o := range n.desired.objects {
		objects[ref] = string(o.Spec)
	}
	n.stop()
	n.tear("torn")
	n.start()
	for range 2 { // at the second start, there is the record that the first start wrote
		n.wantOnly("torn", "whole")
		for ref, spec := range objects {
			if o := n.desired.objects[ref]; string(o.Spec) != spec {
				t.Errorf("%s is %s, was %s", ref, o.Spec, spec)
			}
		}
		r := n.pods[was.owner()]
		if r == nil {
			t.Fatal("it is not known")
		}
		slices.SortFunc(r.Ports, func(a, b portMapping) int { return b.HostPort - a.HostPort })
		if !r.Rebuilt || r.Device != was.Device || r.MAC != was.MAC || r.Netns != was.Netns || !slices.Equal(r.Addresses, was.Addresses) ||
			!slices.Equal(r.Gateways, was.Gateways) || !slices.Equal(r.Ports, was.Ports) || !reflect.DeepEqual(r.refs(), was.refs()) {
			t.Errorf("it is %+v, was %+v", r, was)
		}
		n.wantProblem("shop/web-torn", "hs1")
		n.restart()
	}
	if err := n.command(api.CNIDel, "torn", nil); err != nil {
		t.Fatal(err)
	}
	n.wantOnly("whole")
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("it is gone, and still: %q", p)
	}
	if left, _ := filepath.Glob(filepath.Join(n.dir, recordDir, "*"+damagedSuffix)); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

func (r *record) refs() (list []string) {
	for _, o := range r.objects() {
		list = append(list, o.String())
	}
	slices.Sort(list)
	return list
}

// TestTornRecordAlone: the Endpoint, the lease, or both are missing as well.
func TestTornRecordAlone(t *testing.T) {
	for _, lost := range []string{"objects", "addresses", "both"} {
		t.Run(lost, func(t *testing.T) {
			n := newNode(t)
			n.mustAdd("torn", nil)
			n.stop()
			n.tear("torn")
			if lost != "addresses" {
				n.desired.set(func() { clear(n.desired.objects) })
			}
			if lost != "objects" {
				if err := os.RemoveAll(filepath.Join(n.dir, "addresses")); err != nil {
					t.Fatal(err)
				}
			}
			n.start()
			n.restart()
			if l, there := n.links.Links()["hs1"]; !there || !l.Open {
				t.Fatal("the link of a pod no longer exists that runs")
			}
			if len(n.Problems()) == 0 {
				t.Error("not reported")
			}
			if r := n.mustAdd("next", nil); r.Interfaces[0].Name != "hs2" {
				t.Errorf("the next has device %s", r.Interfaces[0].Name)
			}
			if err := n.command(api.CNIDel, "torn", nil); err != nil {
				t.Fatal(err)
			}
			n.wantOnly("next")
			if p := n.Problems(); len(p) > 0 {
				t.Errorf("it is gone, and still: %q", p)
			}
		})
	}
}

// TestRecordsLost: the directory of the records is deleted while pods run. Links of unknown pods
// are also kept until their pods are deleted.
func TestRecordsLost(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	n.mustAdd("c2", nil)
	if err := n.links.Make(t.Context(), &datapath.PodLink{Device: "hs9", Netns: "/x", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	if err := os.RemoveAll(filepath.Join(n.dir, recordDir)); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.restart()
	links := n.links.Links()
	if len(links) != 3 || !links["hs1"].Open || !links["hs2"].Open {
		t.Fatalf("links %v", links)
	}
	if p := n.Problems(); len(p) != 2 || !strings.Contains(p[0], "shop/web-c1") || !strings.Contains(p[0], "shop/web-c2") || !strings.Contains(p[1], "hs9") {
		t.Errorf("problems: %q", p)
	}
	if err := n.links.Delete(t.Context(), "hs9"); err != nil {
		t.Fatal(err)
	}
	n.sweep(t.Context())
	n.wantOnly("c1", "c2")
	n.wantProblem("shop/web-c1")
}

// TestStrayRecord: an unreadable record is reported if its interface does not exist.
func TestStrayRecord(t *testing.T) {
	n := newNode(t)
	n.mustAdd("good", nil)
	path := filepath.Join(n.dir, recordDir, "torn.json")
	if err := os.WriteFile(path, []byte(`{"containerID":"to`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.wantOnly("good")
	n.wantProblem(path + damagedSuffix)
	if err := os.Remove(path + damagedSuffix); err != nil {
		t.Fatal(err)
	}
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("it is gone, and still: %q", p)
	}
}

// TestTornRecordOfPlugin: the plugin that assigned the addresses is determined from the
// configuration of the DEL.
func TestTornRecordOfPlugin(t *testing.T) {
	n := newNode(t)
	r := &record{ContainerID: "c1", IfName: "eth0", Rebuilt: true}
	p := n.params(api.CNIDel, "c1", map[string]any{"ipam": map[string]any{"type": "host-local"}})
	dir := t.TempDir()
	n.usePlugins(dir)
	if err := os.WriteFile(filepath.Join(dir, "host-local"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := parseConf(p)
	if err != nil {
		t.Fatal(err)
	}
	if n.recallPlugin(r, p, c); r.Plugin == nil || r.Plugin.Type != "host-local" {
		t.Errorf("plugin %+v", r.Plugin)
	}
	if _, err := n.Addresses.Allocate(t.Context(), ipam.Request{Network: "default", Owner: r.owner()}); err != nil {
		t.Fatal(err)
	}
	r.Plugin = nil
	if n.recallPlugin(r, p, c); r.Plugin != nil {
		t.Error("its addresses are ours")
	}
}

func TestOwnerOfLink(t *testing.T) {
	for label, want := range map[string]ipam.Owner{
		"shop/web c1/eth0": {ContainerID: "c1", IfName: "eth0"}, "c1/net1": {ContainerID: "c1", IfName: "net1"}, "shop/web c1": {}, "": {},
	} {
		if o, ok := ownerIn(label); ok != (want != ipam.Owner{}) || ok && o != want {
			t.Errorf("%q is of %q, %t", label, o, ok)
		}
	}
	o := ipam.Owner{ContainerID: "c1", IfName: "net3"}
	if got, ok := guessOwner(objectName(o, "shop", "web"), "c1"); !ok || got != o {
		t.Errorf("guessed %q, %t", got, ok)
	}
	if got, ok := guessOwner("shop/web", "c1"); ok {
		t.Errorf("guessed %q", got)
	}
}
