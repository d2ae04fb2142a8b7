// SPDX-License-Identifier: Apache-2.0

// Package state keeps the desired state: the configured objects, which are changed by atomic
// transactions that are durable before the request is answered.
//
// It checks conditions that concern several objects (owners, duplicate claims of frontends, full
// tables) and notifies watchers of changed objects. It neither parses requests nor knows the state
// of the data plane.
package state

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Kinds of objects.
const (
	KindBridge       = api.KindBridge
	KindInterface    = api.KindInterface
	KindEndpoint     = api.KindEndpoint
	KindRoute        = api.KindRoute
	KindPodNetwork   = api.KindPodNetwork
	KindAddressGroup = api.KindAddressGroup
	KindNAT          = api.KindNAT
	KindFirewallRule = api.KindFirewallRule
	KindService      = api.KindService
	KindTunnel       = api.KindTunnel
	KindPeer         = api.KindPeer
	KindMirror       = api.KindMirror
	KindNamespace    = api.KindNamespace
	KindEntity       = api.KindEntity
	KindTier         = api.KindTier
	KindPolicy       = api.KindPolicy
)

// Kinds lists the kinds of objects, in the order of [api.Kinds].
var Kinds = api.Kinds

// Owners with a special meaning.
const (
	// OwnerFile owns the objects from files. Only a [Transaction] by that owner changes them.
	OwnerFile = api.OwnerFile
	// OwnerCNI owns the objects for pods that container runtimes have attached. A rollback does not
	// change these objects, because the pods themselves are not rolled back.
	OwnerCNI = api.OwnerCNI
	// OwnerK8s owns the agent's objects. In Kubernetes, a Service without endpoints is normal.
	OwnerK8s = api.OwnerK8s
)

// Key names an object.
type Key struct{ Kind, Name string }

// String returns Kind/name.
func (k Key) String() string { return k.Kind + "/" + k.Name }

// compare orders by kind, then by name.
func (k Key) compare(l Key) int {
	switch {
	case k == l:
		return 0
	case k.Kind < l.Kind, k.Kind == l.Kind && k.Name < l.Name:
		return -1
	default:
		return 1
	}
}

// Object is one object of the desired state. It is immutable once it is in the store: it may be
// kept and shared, but must not be modified.
type Object struct {
	Key
	Owner    string
	Labels   map[string]string
	Spec     string // JSON, as configured
	Value    Value  // the decoded Spec
	Revision uint64 // revision of the commit that last changed the object; set by the store

	crc uint32 // checksum of its record on disk
}

// same reports whether o and p differ only in their revision.
func (o *Object) same(p *Object) bool {
	return o.Owner == p.Owner && o.Spec == p.Spec && maps.Equal(o.Labels, p.Labels)
}

// encodeObject returns the record of o and stores its checksum in o.
func encodeObject(o *Object) []byte {
	sealed, crc := recordOf(o)
	o.crc = crc
	return sealed
}

// recordOf returns the record of o: checksum, revision, owner, labels, spec.
func recordOf(o *Object) (sealed []byte, crc uint32) {
	buf := make([]byte, record.SumSize, record.SumSize+16+len(o.Owner)+len(o.Spec)+64*len(o.Labels))
	buf = binary.AppendUvarint(buf, o.Revision)
	buf = record.AppendString(buf, o.Owner)
	buf = binary.AppendUvarint(buf, uint64(len(o.Labels)))
	for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
		buf = record.AppendString(record.AppendString(buf, k), o.Labels[k])
	}
	buf = append(buf, o.Spec...)
	crc = record.Seal(o.Key.String(), buf)
	return buf, crc
}

// decodeObject is the reverse of encodeObject; Value is left unset. It does not retain any part of
// sealed.
func decodeObject(key string, sealed []byte) (*Object, bool) {
	payload, crc, ok := record.Unseal(key, sealed)
	kind, name, named := strings.Cut(key, "/")
	if !ok || !named {
		return nil, false
	}
	r := record.Reader{Rest: payload}
	o := &Object{Key: Key{kindName(kind), name}, crc: crc}
	o.Revision = r.Uvarint()
	o.Owner = r.Text()
	if n := r.Uvarint(); n > 0 && n <= uint64(len(r.Rest)) {
		o.Labels = make(map[string]string, n)
		for range n {
			k := r.Text()
			o.Labels[k] = r.Text()
		}
	} else if n > 0 {
		r.Bad = true
	}
	o.Spec = string(r.Rest)
	return o, !r.Bad
}

// kindName returns the constant for a known kind, so that objects share the string.
func kindName(kind string) string {
	for _, k := range Kinds {
		if k == kind {
			return k
		}
	}
	return kind
}

// Value is the checked spec of an object: a pointer to one of this package's types that are named
// after a kind, or opaque.
type Value interface {
	// cost returns how many entries the object needs in each table.
	cost() datapath.Cost
	// claims calls the function each for every resource that the object claims and that no other
	// object may own.
	claims(each func(c claim, field func() string))
}

// opaque is the value of an object whose spec this version cannot decode: it stays in the store for
// a version that can decode it, and has no effect until then.
type opaque struct{}

func (opaque) cost() datapath.Cost               { return datapath.Cost{} }
func (opaque) claims(func(claim, func() string)) {}

// isOpaque reports whether this version cannot decode the spec of o.
func (o *Object) isOpaque() bool { return o.Value == opaque{} }

// Interface is the spec of an Interface.
type Interface struct{ datapath.Port }

func (*Interface) cost() datapath.Cost { return datapath.Cost{} }

func (i *Interface) claims(each func(claim, func() string)) {
	if i.Address.IsValid() {
		c := claim{what: claimInterfaceAddress, prefix: netip.PrefixFrom(i.Address, i.Address.BitLen()), inSwitch: i.Switch}
		each(c, func() string { return "spec.address" })
		return
	}
	each(claim{what: claimInterface, device: i.Device, inSwitch: i.Switch}, func() string { return "spec.device" })
}

// Service is the spec of a Service.
type Service struct {
	datapath.Service
	Health *HealthCheck // nil: backends are not checked
}

func (s *Service) cost() datapath.Cost { return s.Service.Cost() }

func (s *Service) claims(each func(claim, func() string)) {
	for i, f := range s.Frontends {
		each(claim{what: claimFrontend, frontend: f}, func() string { return fmt.Sprintf("spec.frontends[%d]", i) })
	}
}

// HealthCheck configures how the health of backends is checked. All fields are set, without
// defaults.
type HealthCheck struct {
	Type      string // tcp, http, https, ping
	Path      string // http and https only
	Port      uint16 // 0: the backend's
	Interval  time.Duration
	Timeout   time.Duration
	Healthy   int // successes in a row after which the backend counts as healthy
	Unhealthy int // failures in a row after which it counts as unhealthy
}
