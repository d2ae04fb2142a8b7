// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

func TestDevicesThatObjectsName(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	put := func(kind, name, owner string, v Value) *Object {
		return &Object{Key: Key{kind, name}, Owner: owner, Spec: name, Value: v}
	}
	pod := endpoint("pod", "hs6", 6, "10.1.0.6")
	pod.Owner = OwnerCNI
	commit(t, s, &Transaction{Put: []*Object{
		put(KindInterface, "i", "cli", &Interface{datapath.Port{Device: "hs1"}}),
		put(KindBridge, "b", "file", &Bridge{Bridge: datapath.Bridge{Device: "hs2", Ports: []datapath.BridgePort{{Device: "hs3"}}}}),
		put(KindTunnel, "t", "k8s", &Tunnel{datapath.Tunnel{Device: "hs4"}}),
		put(KindPodNetwork, "n", "cli", &PodNetwork{Bridge: "hs7"}),
		endpoint("e", "hs5", 5, "10.1.0.5"), pod,
	}})
	for device, want := range map[string]bool{
		"hs1": true, "hs2": true, "hs3": true, "hs4": true, "hs4-e": true, "hs5": true, "hs6": false, "hs7": true, "hs8": false, "": false,
	} {
		if got := s.NamesDevice(device, OwnerCNI); got != want {
			t.Errorf("%q: %t", device, got)
		}
	}
	commit(t, s, &Transaction{Confirm: time.Minute, Delete: []Key{{KindEndpoint, "e"}}})
	if !s.NamesDevice("hs5", OwnerCNI) {
		t.Error("hs5 is free, though its Endpoint may come back")
	}
	if err := s.Confirm(s.Snapshot().Revision); err != nil || s.NamesDevice("hs5", OwnerCNI) {
		t.Errorf("%v; hs5 is taken, though its Endpoint is gone for good", err)
	}
}
