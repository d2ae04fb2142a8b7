// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/pflag"
)

var entityKind = Kind{
	Name:    api.KindEntity,
	Words:   []string{"entity", "entities"},
	Plural:  "Entities",
	Meaning: "a labelled participant that Policies select",
	Columns: []output.Column{
		{Title: "SET", Optional: 2}, {Title: "NAMESPACE"}, {Title: "SELECTED BY", Flexible: true}, {Title: "OF", Flexible: true}, {Title: "PORTS", Flexible: true, Optional: 1},
	},
	Wide:       []output.Column{{Title: "ENDPOINTS", Flexible: true, Optional: 3}, {Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:      entityCells,
	Spec:       func() any { return &api.EntitySpec{} },
	Schema:     entitySchema,
	fields:     entityFields,
	adjust:     adjustEntity,
	AddExample: "  llcli entity add db-far --namespace shop --label app=db --address 10.244.7.9 --named-port sql,port=5432\n  llcli entity add build --label app=build --endpoint vm7\n  llcli entity add this-node --set nodes --here",
	SetExample: "  llcli entity set db-far --label app=db,stage=old --add-address 10.244.7.10",
}

func entityCells(o *api.Object, wide bool) []output.Cell {
	var spec api.EntitySpec
	var status api.EntityStatus
	Decode(o, &spec, &status)
	of := output.Join(spec.Addresses)
	switch e := spec.Endpoint; {
	case spec.Here:
		of = "this node"
	case e != nil && e.Name != "":
		of = "endpoint " + e.Name
	case e != nil && e.Namespace != "":
		of = "pod " + e.Namespace + "/" + e.Pod
	case e != nil:
		of = "pod " + e.Pod
	}
	var ports []string
	for _, p := range spec.Ports {
		ports = append(ports, fmt.Sprintf("%s=%s/%d", p.Name, cmp.Or(p.Protocol, api.ServiceProtocols[0]), p.Port))
	}
	cells := []output.Cell{
		{Text: cmp.Or(spec.Set, api.SetPods)}, {Text: cmp.Or(spec.Namespace, "-")}, {Text: output.Labels(spec.Labels)}, {Text: of}, {Text: output.Join(ports)},
	}
	if wide {
		cells = append(cells, output.Cell{Text: output.Join(status.Endpoints)}, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

// entityTargets are the fields of which an Entity has one; an Endpoint is named in one of two ways.
var entityTargets = [][]string{{"address", "addresses"}, {"endpoint", "endpoint.name"}, {"pod", "endpoint.pod"}, {"here", "here"}}

var entityFields = []specField{
	{flag: "set", path: "set", usage: "`SET` of Entities to which it belongs (default: " + api.SetPods + ")"},
	{flag: "namespace", path: "namespace", usage: "`NAMESPACE` whose labels it shares"},
	{flag: "label", path: "labels", form: formPairs, usage: "label by which selectors select it, `KEY=VALUE`; may be repeated"},
	{flag: "named-port", path: "ports", form: formItems, usage: "a `NAME` with ,port=NUMBER and ,protocol=PROTOCOL (tcp, udp, sctp); may be repeated",
		item: itemOf("name", map[string]form{"name": formText, "port": formNumber, "protocol": formText}),
		key:  func(p map[string]any) string { return fmt.Sprint(p["name"]) }},
	{flag: "address", path: "addresses", form: formWords, usage: "`ADDRESS` of another host; may be repeated"},
	{flag: "endpoint", path: "endpoint.name", kind: api.KindEndpoint, usage: "it is the Endpoint `NAME` of this node"},
	{flag: "pod", path: "endpoint.pod", usage: "it is the pod `NAME` of this node"},
	{flag: "pod-uid", path: "endpoint.uid", usage: "the `UID` that the Endpoint of that pod has (default: any)"},
	{flag: "pod-namespace", path: "endpoint.namespace", usage: "the `NAMESPACE` that the Endpoint of that pod has"},
	{flag: "here", path: "here", form: formMeans, means: true, usage: "it is this node itself"},
}

// adjustEntity removes the target that another one replaces.
func adjustEntity(_ *command.App, spec map[string]any, given *pflag.FlagSet) error {
	chosen := ""
	for _, target := range entityTargets {
		if !given.Changed(target[0]) || find(spec, strings.Split(target[1], ".")) == nil {
			continue
		}
		if chosen != "" {
			return command.Usagef("--%s and --%s cannot be combined: an Entity has addresses, or is an Endpoint, or is this node", chosen, target[0])
		}
		chosen = target[0]
	}
	for _, target := range entityTargets {
		if chosen != "" && target[0] != chosen {
			removePath(spec, strings.Split(target[1], "."))
		}
	}
	if chosen != "" && chosen != "pod" {
		removeUnless(spec, given, "endpoint.namespace", "pod-namespace")
		removeUnless(spec, given, "endpoint.uid", "pod-uid")
	}
	return nil
}

const entitySchema = `kind: Entity
name: db-far                  # a-z, 0-9 and - . / : inside; unique among Entities
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  set: pods                   # default; selectors match one set
  namespace: shop             # whose labels it shares; default: none
  labels: {app: db}           # by which selectors select it
  ports:                      # to which rules refer by name
    - {name: sql, protocol: tcp, port: 5432} # or udp, sctp; default: tcp
  addresses:                  # exactly one of addresses, endpoint and here
    - 10.244.7.9              # of another host
    - 2001:db8:7::9
---
kind: Entity
name: build
spec:
  labels: {app: build}
  endpoint: {name: vm7}       # an Endpoint of this node, which may be created later
---
kind: Entity
name: web
spec:
  namespace: shop
  labels: {app: web}
  endpoint:                   # every Endpoint of a pod
    namespace: shop
    pod: web-1
    uid: 6f3c9b0e-9d4b-4a56-9d0c-3f4f1f0f2a11 # default: every pod of that name
---
kind: Entity
name: this-node
spec:
  set: nodes
  here: true                  # this node itself
`

var namespaceKind = Kind{
	Name:       api.KindNamespace,
	Words:      []string{"namespace", "namespaces", "ns"},
	Meaning:    "labels that all Entities in a namespace share",
	Columns:    []output.Column{{Title: "SELECTED BY", Flexible: true}},
	Wide:       []output.Column{{Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:      namespaceCells,
	Spec:       func() any { return &api.NamespaceSpec{} },
	Schema:     namespaceSchema,
	fields:     []specField{{flag: "label", path: "labels", form: formPairs, usage: "label by which selectors select its Entities, `KEY=VALUE`; may be repeated"}},
	AddExample: "  llcli namespace add shop --label team=shop",
	SetExample: "  llcli namespace set shop --label team=shop,stage=test",
}

func namespaceCells(o *api.Object, wide bool) []output.Cell {
	var spec api.NamespaceSpec
	Decode(o, &spec, &struct{}{})
	cells := []output.Cell{{Text: output.Labels(spec.Labels)}}
	if wide {
		cells = append(cells, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

const namespaceSchema = `kind: Namespace
name: shop                    # the namespace of Entities; it needs no object to be used
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  labels: {team: shop}        # by which selectors select its Entities
`

var tierKind = Kind{
	Name:    api.KindTier,
	Words:   []string{"tier", "tiers"},
	Meaning: "a group of Policies, and when it is evaluated",
	Columns: []output.Column{{Title: "ORDER", Right: true}, {Title: "ALWAYS"}},
	Wide:    []output.Column{{Title: "LABELS", Flexible: true, Optional: 5}},
	Cells:   tierCells,
	Order: func(a, b *api.Object) int {
		return cmp.Or(cmp.Compare(tierOrder(a), tierOrder(b)), cmp.Compare(a.Name, b.Name))
	},
	Spec:   func() any { return &api.TierSpec{} },
	Schema: tierSchema,
	fields: []specField{
		{flag: "order", path: "order", form: formNumber, usage: "tiers are evaluated in the order of this `NUMBER`, lowest first"},
		{flag: "always", path: "always", form: formWords, values: api.TierPeers, usage: "a `PEER` that isolation never shuts out: self, node; may be repeated"},
	},
	complete: func(_ string, spec map[string]any) error {
		if spec["order"] == nil {
			return command.Usagef("the order is missing; set --order NUMBER: tiers with lower numbers are evaluated first")
		}
		return nil
	},
	AddExample: "  llcli tier add main --order 200 --always self,node",
	SetExample: "  llcli tier set main --order 300",
}

func tierOrder(o *api.Object) int32 {
	var spec api.TierSpec
	Decode(o, &spec, &struct{}{})
	if spec.Order == nil {
		return 0
	}
	return *spec.Order
}

func tierCells(o *api.Object, wide bool) []output.Cell {
	var spec api.TierSpec
	Decode(o, &spec, &struct{}{})
	cells := []output.Cell{{Text: strconv.Itoa(int(tierOrder(o)))}, {Text: output.Join(spec.Always)}}
	if wide {
		cells = append(cells, output.Cell{Text: output.Labels(o.Labels)})
	}
	return cells
}

const tierSchema = `kind: Tier
name: main                    # to which Policies refer
labels: {team: net}           # for llcli get -l; no effect in the daemon
spec:
  order: 200                  # lower first, then by name
  always: [self, node]        # peers that isolation never shuts out; default: none
`
