// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

func tunnel(name, owner string) *Object {
	t := &Tunnel{datapath.Tunnel{Device: "hs-" + name, VNI: uint32(len(name))}}
	return &Object{Key: Key{KindTunnel, name}, Owner: owner, Spec: name, Value: t}
}

func peerBy(name, owner, tunnel string) *Object {
	return &Object{Key: Key{KindPeer, name}, Owner: owner, Spec: tunnel, Value: &Peer{datapath.Peer{Tunnel: datapath.TunnelName(tunnel)}}}
}

// TestTunnelsThatPeersName: no owner can delete a Tunnel without also deleting the Peers that name
// it; only a rollback can.
func TestTunnelsThatPeersName(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	put := func(o ...*Object) *Transaction { return &Transaction{Put: o} }
	drop := func(k ...Key) *Transaction { return &Transaction{Delete: k} }
	replace := func(owner string, o ...*Object) *Transaction {
		return &Transaction{Owner: owner, Put: o, Replace: &Scope{Owner: owner, Kinds: []string{KindTunnel, KindPeer}}}
	}
	mesh, overlay, filed := tunnel("mesh", OwnerFile), tunnel("overlay", "k8s"), tunnel("t", "cli")
	commit(t, s, put(peerBy("early", "cli", "t"))) // Pending until its Tunnel exists
	before := s.Snapshot().Revision
	commit(t, s, put(filed))
	wantRefusal(t, s, drop(filed.Key), Conflict, "Tunnel/t", "", "1 Peer names it, Peer/early: delete it")
	if _, err := s.Rollback(&Rollback{Revision: before}); err != nil {
		t.Errorf("back to the Peer without its Tunnel: %v", err)
	}
	commit(t, s, put(filed))
	commit(t, s, drop(filed.Key, Key{KindPeer, "early"}))

	commit(t, s, put(overlay, peerBy("n3", "k8s", "overlay"), peerBy("n2", "k8s", "overlay"), peerBy("routed", "k8s", "")))
	wantRefusal(t, s, drop(overlay.Key), Conflict, "Tunnel/overlay", "", "2 Peers name it, the first is Peer/n2: delete them")
	wantRefusal(t, s, replace("k8s", peerBy("n2", "k8s", "overlay")), Conflict, "Tunnel/overlay", "", "1 Peer names it, Peer/n2")
	commit(t, s, put(peerBy("mine", "cli", "overlay")))
	wantRefusal(t, s, replace("k8s"), Conflict, "Tunnel/overlay", "", "1 Peer names it, Peer/mine")
	commit(t, s, drop(Key{KindPeer, "mine"}))
	commit(t, s, replace("k8s", peerBy("n2", "k8s", ""))) // from now on, the underlay routes packets to the Peer
	commit(t, s, replace("k8s", overlay, peerBy("n2", "k8s", "overlay")))
	commit(t, s, replace("k8s"))

	commit(t, s, replace(OwnerFile, mesh, peerBy("f", OwnerFile, "mesh")))
	wantRefusal(t, s, replace(OwnerFile, peerBy("f", OwnerFile, "mesh")), Conflict, "Tunnel/mesh", "", "1 Peer names it, Peer/f")
	commit(t, s, replace(OwnerFile))
}
