// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// Groups of objects: the translation of one cluster object.
const (
	groupSelf    = "self"
	groupNetwork = "network"
	groupUplinks = "uplinks"
	groupNode    = "node/"
	groupService = "service/"

	groupTier      = "tier"
	groupNamespace = "namespace/"
	groupPolicy    = "policy/"
	groupPod       = "pod/"

	groupClusterPolicy = "clusterpolicy/"
	groupNodeEntity    = "nodeentity/"
)

// nodeChanged is called for each change to a node.
func (a *Agent) nodeChanged(old, now *corev1.Node) {
	if same(old, now) {
		return
	}
	if announces(old) != announces(now) && a.pools != nil {
		a.queue.put(item{kind: itemAnnounce}, time.Time{})
	}
	if !services.NewReserved(listOf(old)).Equal(services.NewReserved(listOf(now))) {
		a.queue.put(item{kind: itemReserved}, time.Time{})
	}
	name := either(old, now).Name
	if name == a.o.NodeName {
		a.queue.put(item{kind: itemAll}, time.Time{})
		a.state.poke()
		return
	}
	a.queue.put(item{itemNode, name}, time.Time{})
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// same reports whether two versions of a node are equal in the fields that we use.
func same(old, now *corev1.Node) bool {
	if old == nil || now == nil {
		return old == now
	}
	a, b := *old, *now
	a.ResourceVersion, b.ResourceVersion = "", ""
	return reflect.DeepEqual(&a, &b)
}

// translate updates the desired objects from the cluster's changes.
func (a *Agent) translate() {
	items := a.takeItems()
	if _, ok := items[item{kind: itemAll}]; ok {
		a.translateSelf()
		if a.setSubnets() {
			a.translatePods()
			a.translateNodeEntities()
			a.translateClusterPolicies()
		}
		a.translateNodeEntity(a.o.NodeName)
		if node := a.self(); node != nil {
			a.translateServices(node, items)
		}
	}
	hasClusterPolicies := false
	for i, since := range items {
		switch i.kind {
		case itemNode:
			a.translateNode(i.key, since)
			a.translateNodeEntity(i.key)
		case itemService:
			a.translateService(i.key, since)
		case itemAnnounce:
			a.announceAnew()
		case itemReserved:
			a.reserveAnew()
		case itemResolvers:
			a.translateNetwork()
		case itemPod:
			a.translatePod(i.key)
		case itemNamespace:
			a.translateNamespace(i.key)
		case itemNetworkPolicy:
			a.translatePolicy(i.key)
		case itemClusterPolicy:
			a.translateClusterPolicy(i.key)
			hasClusterPolicies = true
		}
	}
	if hasClusterPolicies {
		a.settleClusterPolicies()
	}
}

// translateAll does the same for all objects.
func (a *Agent) translateAll() {
	items := a.takeItems()
	a.translateSelf()
	a.setSubnets()
	a.translateParticipants()
	for _, group := range a.syncer.Groups() {
		if name, ok := strings.CutPrefix(group, groupNode); ok && a.nodes.Get(name) == nil {
			a.translateNode(name, time.Time{})
		}
	}
	for _, n := range a.nodes.All() {
		if n.Name != a.o.NodeName {
			a.translateNode(n.Name, time.Time{})
		}
	}
	if node := a.self(); node != nil {
		a.translateServices(node, items)
	}
}

// translateSelf keeps the state in force if the node is no longer in the cluster.
func (a *Agent) translateSelf() {
	node := a.self()
	tunnelRef, uplinkRefs := nodes.SelfRefs()
	if node == nil {
		a.syncer.Keep(groupSelf, tunnelRef)
		a.translateNetwork()
		a.syncer.Keep(groupUplinks, uplinkRefs...)
		a.log.Warn("this node is no longer in the cluster; the current configuration stays in force", slog.String("node", a.o.NodeName))
		return
	}
	uplinks, err := nodes.Uplinks(node)
	if err != nil {
		a.reportProblem(nodeOf(a.o.NodeName), reasonInvalid, err)
	}
	if len(uplinks) > 0 {
		a.syncer.Set(groupUplinks, uplinks, time.Time{})
	} else {
		a.syncer.Keep(groupUplinks, uplinkRefs...)
	}
	a.syncer.Set(groupSelf, nodes.Tunnel(a.o.Config), time.Time{})
	a.translateNetwork()
}

func (a *Agent) translateNode(name string, since time.Time) {
	node := a.nodes.Get(name)
	if node == nil || name == a.o.NodeName {
		a.syncer.Set(groupNode+name, nil, since)
		return
	}
	peer, err := nodes.Peer(a.o.Config, node)
	if err != nil {
		a.reportProblem(nodeOf(name), reasonInvalid, err)
	}
	if peer == nil { // the current state stays in force
		a.syncer.Keep(groupNode+name, api.ObjectRef{Kind: api.KindPeer, Name: name})
		return
	}
	a.syncer.Set(groupNode+name, []api.Object{*peer}, since)
}
