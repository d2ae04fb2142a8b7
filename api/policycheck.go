// SPDX-License-Identifier: Apache-2.0

package api

// PolicyNode names this node itself as an end of traffic.
const PolicyNode = "node"

// PoliciesCheckParams are the parameters of policies.check: traffic that opens a connection. From and
// To are each an Endpoint of this node (by its name, or NAMESPACE/POD), an Entity, an address, or node
// (this node itself). To may also be a DNS name, if From is an Endpoint.
type PoliciesCheckParams struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Protocol string `json:"protocol"`         // tcp, udp, sctp, or any other IP protocol by number
	Port     int    `json:"port,omitempty"`   // of the destination, 1 to 65535; for tcp, udp and sctp
	Staged   bool   `json:"staged,omitempty"` // as if staged Policies were in force
	// Objects are applied for this check only.
	Objects []Object `json:"objects,omitempty"`
}

// PoliciesCheckResult is the result of policies.check.
type PoliciesCheckResult struct {
	// Pending is why packets do not obey the desired Policies; the result is then about the Policies
	// in force. Empty: the desired Policies are in force, or the parameters have Objects.
	Pending string       `json:"pending,omitempty"`
	Paths   []PolicyPath `json:"paths"` // one for each address family that both ends have
}

// PolicyPath is the verdict on traffic of one address family.
type PolicyPath struct {
	Source      string          `json:"source"`            // an address, or node
	Destination string          `json:"destination"`       // likewise; empty: no address of the name is learnt
	Name        string          `json:"name,omitempty"`    // the DNS name that leads to the destination
	Verdict     string          `json:"verdict"`           // allow, deny, reject
	Egress      *PolicyDecision `json:"egress,omitempty"`  // nil: the source is no Endpoint of this node
	Ingress     *PolicyDecision `json:"ingress,omitempty"` // nil: the destination is no Endpoint of this node
}

// PolicyDecision is how the Policies of an Endpoint decide about traffic in one direction.
type PolicyDecision struct {
	Endpoint string       `json:"endpoint"`
	Peer     string       `json:"peer,omitempty"` // the Entity at the other end; empty: none
	Verdict  string       `json:"verdict"`
	Tiers    []PolicyTier `json:"tiers,omitempty"` // up to the tier that decides
	// Without is the verdict if the rule that decided, or the isolation, did not exist; empty: none
	// decided.
	Without string `json:"without,omitempty"`
	// Names are names in Policies that have the address at the other end. FormerNames had it until its TTL
	// and the grace period ended.
	Names       []string `json:"names,omitempty"`
	FormerNames []string `json:"formerNames,omitempty"`
}

// PolicyTier is the result of one tier.
type PolicyTier struct {
	Tier     string   `json:"tier"`
	Policies []string `json:"policies,omitempty"` // that apply to the Endpoint, in the order of evaluation
	// Result is allow, deny, reject, pass; isolated: denied because no rule decided; unknown: denied
	// because the Endpoint lacks the Entity that its network requires; or next: the tier decides
	// nothing.
	Result string `json:"result"`
	Policy string `json:"policy,omitempty"` // that decided
	// Rule is the name of the rule that decided, or its number from 1 if it has no name.
	Rule string      `json:"rule,omitempty"`
	Peer *PolicyPeer `json:"peer,omitempty"` // of this rule, that matched; nil: the rule lists none
	Port *PolicyPort `json:"port,omitempty"` // likewise
	// Exempt means that Policies isolate the Endpoint, but the tier always allows this peer.
	Exempt bool `json:"exempt,omitempty"`
}

// Results of a tier besides the actions of rules.
const (
	PolicyIsolated = "isolated"
	PolicyUnknown  = "unknown"
	PolicyNext     = "next"
)

// PoliciesForParams are the parameters of policies.for.
type PoliciesForParams struct {
	Endpoint string `json:"endpoint"` // its name, or NAMESPACE/POD
}

// PoliciesForResult is the result of policies.for: the Policies that apply to an Endpoint.
type PoliciesForResult struct {
	Pending   string            `json:"pending,omitempty"` // as in [PoliciesCheckResult]
	Endpoint  string            `json:"endpoint"`
	IsEntity  bool              `json:"isEntity"` // else no Policy applies to it
	Set       string            `json:"set,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Ingress   []AppliedPolicy   `json:"ingress,omitempty"` // in the order of evaluation
	Egress    []AppliedPolicy   `json:"egress,omitempty"`
}

// AppliedPolicy is a Policy that applies to an Endpoint in one direction.
type AppliedPolicy struct {
	Tier     string `json:"tier"`
	Policy   string `json:"policy"`
	Staged   bool   `json:"staged,omitempty"`   // not in force
	Isolates bool   `json:"isolates,omitempty"` // denies what no rule of the tier decides
	Rules    int    `json:"rules"`              // number of its rules for this direction
}

// PoliciesUnusedParams are the parameters of policies.unused.
type PoliciesUnusedParams struct {
	Since    Duration `json:"since"`              // rules without a decision in this time, at least 0
	Continue string   `json:"continue,omitempty"` // of the part before
	Limit    int      `json:"limit,omitempty"`    // Policies to examine, 1 to 1000; default 1000
}

// PoliciesUnusedResult is the result of policies.unused. Rules with the action pass decide nothing and
// are omitted.
type PoliciesUnusedResult struct {
	Rules    []UnusedRule `json:"rules"`              // by Policy, then as written
	Continue string       `json:"continue,omitempty"` // for the next part; empty: this is the last one
}

// UnusedRule is a rule of a Policy without a decision.
type UnusedRule struct {
	Policy string `json:"policy"`
	PolicyRuleCounters
}

// PoliciesCompareParams are the parameters of policies.compare.
type PoliciesCompareParams struct {
	Objects []Object `json:"objects"`         // as in apply
	Limit   int      `json:"limit,omitempty"` // 1 to 1000; default 100
}

// PoliciesCompareResult is the result of policies.compare.
type PoliciesCompareResult struct {
	Pending     string             `json:"pending,omitempty"` // as in [PoliciesCheckResult]: compared are the Policies in force
	Differences []PolicyDifference `json:"differences"`
	More        bool               `json:"more,omitempty"` // there are more than Limit
}

// PolicyDifference is traffic of an Endpoint of this node whose verdict would change.
type PolicyDifference struct {
	Source      PolicyEnd `json:"source"`
	Destination PolicyEnd `json:"destination"`
	Protocol    string    `json:"protocol,omitempty"` // tcp, udp, sctp; empty: all protocols without ports
	Port        int       `json:"port,omitempty"`     // the first of the destination ports; 0 and no End: no ports
	End         int       `json:"end,omitempty"`      // the last one
	Before      string    `json:"before"`             // allow, deny, reject
	After       string    `json:"after"`
}

// PolicyEnd is one end of traffic. This node has the name node and no address.
type PolicyEnd struct {
	Name    string `json:"name,omitempty"`    // Endpoint/NAME or Entity/NAME; empty: no Entity has the addresses
	Address string `json:"address,omitempty"` // or a prefix: of it, only addresses that are in no longer prefix and of no Entity
}
