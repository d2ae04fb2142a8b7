// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// kind is how objects of one kind are named and shown.
type kind struct {
	name    string   // as in a document
	words   []string // as on a command line; the first is the noun
	meaning string   // in one line
	columns []column
	wide    []column
	// cells returns the values of columns, and of columns and wide.
	cells func(o *api.Object, wide bool) []cell
	// order is the order of a table's rows; nil: by name.
	order func(a, b *api.Object) int
	// spec returns an empty spec; nil where every field is kept as it is written.
	spec func() any
}

var kinds = []kind{
	bridgeKind,
	{
		name:    api.KindInterface,
		words:   []string{"interface", "interfaces", "if", "iface"},
		meaning: "a Linux device that the data plane attaches to",
		columns: []column{
			{title: "DEVICE"}, {title: "NETNS"}, {title: "ROLE"}, {title: "LINK", optional: 1}, {title: "XDP", optional: 1},
		},
		wide: []column{
			{title: "INDEX", right: true, optional: 2}, {title: "MAC", optional: 5}, {title: "MTU", right: true, optional: 4},
			{title: "ADDRESSES", flexible: true, optional: 3}, {title: "HOOKS", flexible: true, optional: 3},
		},
		cells: interfaceCells,
	},
	tunnelKind,
	peerKind,
	routeKind,
	podNetworkKind,
	endpointKind,
	groupKind,
	natKind,
	firewallKind,
	{
		name:    api.KindService,
		words:   []string{"service", "services", "svc"},
		meaning: "addresses whose connections are spread over backends",
		columns: []column{
			{title: "FRONTENDS", flexible: true}, {title: "BACKENDS", right: true}, {title: "ALGORITHM", optional: 1},
		},
		wide: []column{
			{title: "SOURCE", optional: 3}, {title: "AFFINITY", optional: 4}, {title: "HEALTH", optional: 4}, {title: "LABELS", flexible: true, optional: 5},
		},
		cells: serviceCells,
	},
}

// needKind wants a kind as the first argument.
func needKind(usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		words := make([]string, len(kinds))
		for i := range kinds {
			words[i] = kinds[i].words[0]
		}
		return usagef("which kind of %s? %s", strings.Join(words, ", "), usage)
	}
}

// kindOf returns the kind that a word means, or the word: the daemon may know more.
func kindOf(word string) string {
	if k := findKind(word); k != nil {
		return k.name
	}
	return word
}

// findKind returns the kind that a word means; nil: none that we know.
func findKind(word string) *kind {
	for i := range kinds {
		if word == kinds[i].name {
			return &kinds[i]
		}
		for _, w := range kinds[i].words {
			if strings.EqualFold(word, w) {
				return &kinds[i]
			}
		}
	}
	return nil
}

// interfaceDevice returns the device: if it is selected by its address, the device that has the
// address.
func interfaceDevice(spec *api.InterfaceSpec, status *api.InterfaceStatus) string {
	if spec.Address == "" {
		return spec.Device
	}
	return or(status.Device, "of "+spec.Address)
}

func interfaceCells(o *api.Object, wide bool) []cell {
	var spec api.InterfaceSpec
	var status api.InterfaceStatus
	decode(o, &spec, &status)
	cells := []cell{
		{text: interfaceDevice(&spec, &status)}, {text: or(spec.Netns, "host")}, {text: or(spec.Role, "uplink")},
		{text: or(status.Link, "-")}, {text: or(spec.XDP, "off")},
	}
	if wide {
		cells = append(cells,
			cell{text: number(status.Index)}, cell{text: or(status.MAC, "-")}, cell{text: number(status.MTU)},
			cell{text: join(status.Addresses)}, cell{text: join(status.Hooks)})
	}
	return cells
}

func serviceCells(o *api.Object, wide bool) []cell {
	var spec api.ServiceSpec
	var status api.ServiceStatus
	decode(o, &spec, &status)
	cells := []cell{
		{text: join(spec.Frontends)}, backendCount(&spec, &status), {text: or(spec.Algorithm, "maglev")},
	}
	if wide {
		affinity, health := "-", "-"
		if spec.Affinity != nil {
			affinity = short(spec.Affinity.Timeout)
		}
		if spec.Health != nil {
			health = spec.Health.Type
		}
		cells = append(cells, cell{text: or(spec.Source, "auto")}, cell{text: affinity}, cell{text: health}, cell{text: labels(o.Labels)})
	}
	return cells
}

// backendCount returns how many of the backends take new connections, and how
// many there are.
func backendCount(spec *api.ServiceSpec, status *api.ServiceStatus) cell {
	active := 0
	for _, b := range status.Backends {
		if b.State == "active" {
			active++
		}
	}
	c := cell{text: fmt.Sprintf("%d/%d", active, len(spec.Backends))}
	switch {
	case active == len(spec.Backends):
	case active == 0:
		c.color = red
	default:
		c.color = yellow
	}
	return c
}

// decode reads the fields of an object's spec and status that this llcli knows; fields that a
// newer daemon added are left out, fields that it changed appear as absent.
func decode(o *api.Object, spec, status any) {
	if o.Spec != nil {
		_ = json.Unmarshal(o.Spec, spec)
	}
	if o.Status != nil {
		_ = json.Unmarshal(o.Status, status)
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func join(texts []string) string { return or(strings.Join(texts, ","), "-") }

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
