// SPDX-License-Identifier: Apache-2.0

package api

// SetPods is the default set of Entities, and the set of Endpoints with labels of their own.
const SetPods = "pods"

// EntitySpec is a labelled participant in network policies: the addresses of another host, an
// Endpoint of this node, or this node itself. Exactly one of Addresses, Endpoint and Here is set.
// An Endpoint with labels of its own is an Entity of the set pods without an EntitySpec.
type EntitySpec struct {
	Set       string            `json:"set,omitempty"`       // a word; selectors match one set; default pods
	Namespace string            `json:"namespace,omitempty"` // default: none
	Labels    map[string]string `json:"labels,omitempty"`    // by which selectors select it
	Ports     []EntityPort      `json:"ports,omitempty"`     // to which rules refer by name
	Addresses []string          `json:"addresses,omitempty"` // without a prefix length; at most 64
	Endpoint  *EntityEndpoint   `json:"endpoint,omitempty"`  // which need not exist yet
	Here      bool              `json:"here,omitempty"`      // this node itself
}

// EntityPort is a port of an Entity under a name. A name may have several ports.
type EntityPort struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol,omitempty"` // tcp (default), udp, sctp
	Port     int    `json:"port"`               // 1 to 65535
}

// EntityEndpoint names an Endpoint of this node, either by its name, or by its pod: then it is
// every Endpoint with this namespace, pod and uid.
type EntityEndpoint struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"` // empty: any; an Endpoint without a uid has any
}

// EntityStatus is the status of an Entity.
type EntityStatus struct {
	Status
	Endpoints []string `json:"endpoints,omitempty"` // names of the Endpoints of this node that it stands for
}

// NamespaceSpec has the labels that all Entities in the namespace of this name share.
type NamespaceSpec struct {
	Labels map[string]string `json:"labels,omitempty"`
}

// TierSpec is a group of Policies.
type TierSpec struct {
	Order *int32 `json:"order"` // tiers are evaluated in this order, lowest first, then by name; required
	// Always are the peers that isolation by a Policy of the tier never shuts out: self (the
	// subject itself), node (this node).
	Always []string `json:"always,omitempty"`
}

// PolicySpec defines which traffic its subjects may send and receive. Its subjects are Entities
// that are Endpoints of this node.
type PolicySpec struct {
	Tier     string   `json:"tier"`
	Priority *int32   `json:"priority,omitempty"` // in the tier: lower first, then by name; default 1000
	Stage    string   `json:"stage,omitempty"`    // enforced (default), staged: evaluated, but not in force
	Isolate  []string `json:"isolate,omitempty"`  // ingress, egress: deny what no rule of the tier decides
	// IsolateAction is what Isolate does: deny (default), reject.
	IsolateAction string   `json:"isolateAction,omitempty"`
	Log           []string `json:"log,omitempty"` // allow, deny: packets to report as events of the topic policy

	AppliedTo []EntitySelector `json:"appliedTo"`         // the subjects; at least one selector
	Ingress   []IngressRule    `json:"ingress,omitempty"` // for what the subjects receive; the first match decides
	Egress    []EgressRule     `json:"egress,omitempty"`  // for what the subjects send; likewise
}

// IngressRule is a rule for traffic to the subjects of a Policy.
type IngressRule struct {
	Name   string       `json:"name,omitempty"`  // unique in its list; for reports
	Action string       `json:"action"`          // allow, deny, reject, pass
	From   []PolicyPeer `json:"from,omitempty"`  // empty: every peer
	Ports  []PolicyPort `json:"ports,omitempty"` // of the subject; empty: every protocol
}

// EgressRule is a rule for traffic from the subjects of a Policy.
type EgressRule struct {
	Name   string       `json:"name,omitempty"`
	Action string       `json:"action"`
	To     []PolicyPeer `json:"to,omitempty"`
	Ports  []PolicyPort `json:"ports,omitempty"` // of the peer; empty: every protocol
}

// EntitySelector selects Entities of one set. Namespaces and Entities must both match.
type EntitySelector struct {
	Set        string             `json:"set,omitempty"`        // default pods
	Namespaces *NamespaceSelector `json:"namespaces,omitempty"` // nil: all, and Entities without a namespace
	Entities   *LabelSelector     `json:"entities,omitempty"`   // by their own labels; nil: all
}

// NamespaceSelector selects namespaces. All fields must match. Without fields, it selects all
// namespaces, but not Entities without a namespace.
type NamespaceSelector struct {
	Names            []string          `json:"names,omitempty"` // empty: all
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []LabelExpression `json:"matchExpressions,omitempty"`
}

// LabelSelector selects by labels. All labels and expressions must match.
type LabelSelector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []LabelExpression `json:"matchExpressions,omitempty"`
}

// LabelExpression is a condition on one label.
type LabelExpression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`         // In, NotIn, Exists, DoesNotExist
	Values   []string `json:"values,omitempty"` // with In and NotIn: at least one
}

// PolicyPeer is the other end of the traffic: Entities, prefixes or names, but only one of them. At
// least one field is set. Set, Namespaces and Entities are as in an [EntitySelector].
type PolicyPeer struct {
	Set        string             `json:"set,omitempty"`
	Namespaces *NamespaceSelector `json:"namespaces,omitempty"`
	Entities   *LabelSelector     `json:"entities,omitempty"`
	Prefixes   Words              `json:"prefixes,omitempty"` // addresses, prefixes, group:NAME for an AddressGroup
	Except     Words              `json:"except,omitempty"`   // parts of Prefixes that do not match
	// Names are DNS names, or *. and a name for all names below it: the addresses that the resolvers of
	// the subject's network return for them. Only for egress rules with action allow.
	Names []string `json:"names,omitempty"`
}

// PolicyPort is a range of ports of a protocol, or the name of ports of an Entity.
type PolicyPort struct {
	Protocol string `json:"protocol,omitempty"` // tcp, udp, sctp; default: tcp, with Name every protocol
	Port     *int   `json:"port,omitempty"`     // 1 to 65535; nil: every port
	End      *int   `json:"end,omitempty"`      // the last port of a range that begins with Port
	Name     string `json:"name,omitempty"`     // as in [EntityPort]
}

// PolicyStatus is the status of a Policy.
type PolicyStatus struct {
	Status
	Subjects int `json:"subjects"` // Endpoints of this node to which it is applied
}
