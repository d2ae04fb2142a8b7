// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// ParseBackend reads ADDRESS:PORT[,weight=N][,state=S].
func ParseBackend(text string) (api.Backend, error) {
	parts := strings.Split(text, ",")
	b := api.Backend{Address: parts[0]}
	for _, part := range parts[1:] {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "weight":
			weight, err := strconv.Atoi(value)
			if err != nil {
				return b, command.Usagef("--backend %s: weight %q is not a number", text, value)
			}
			if weight < 0 || weight > math.MaxUint16 {
				return b, command.Usagef("--backend %s: weight %d is not between 0 and %d", text, weight, math.MaxUint16)
			}
			b.Weight = &weight
		case "state":
			b.State = value
		default:
			return b, command.Usagef("--backend %s: %q: want weight=N or state=%s", text, part, AnyOf(api.BackendStates))
		}
	}
	return b, nil
}

// SetBackends sets fields of the named backends in a spec. All other fields stay, including unknown
// ones.
func SetBackends(spec map[string]any, service string, names []string, fields map[string]any) error {
	chosen, err := ChooseBackends(spec, service, names)
	if err != nil {
		return err
	}
	for _, i := range chosen {
		b := spec["backends"].([]any)[i].(map[string]any)
		for field, value := range fields {
			b[field] = value
		}
	}
	return nil
}

// ChooseBackends returns the indices of the backends in a spec that match one of names.
func ChooseBackends(spec map[string]any, service string, names []string) ([]int, error) {
	backends, _ := spec["backends"].([]any)
	var chosen []int
	for _, name := range names {
		found := false
		for i, item := range backends {
			b, _ := item.(map[string]any)
			address, _ := b["address"].(string)
			if address == name || address != "" && hostOf(address) == strings.Trim(name, "[]") {
				chosen, found = append(chosen, i), true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no backend %s; llcli service show %s lists them", ServiceRef(service), name, service)
		}
	}
	return chosen, nil
}

// ServiceRef names a Service.
func ServiceRef(name string) api.ObjectRef { return api.ObjectRef{Kind: api.KindService, Name: name} }

// hostOf returns the address without its port.
func hostOf(address string) string {
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		address = address[:i]
	}
	return strings.Trim(address, "[]")
}

// backendsOf returns the addresses of a Service's backends, in order.
func backendsOf(o *api.Object) []string {
	var spec api.ServiceSpec
	Decode(o, &spec, &struct{}{})
	var addresses []string
	for _, b := range spec.Backends {
		addresses = append(addresses, b.Address)
	}
	slices.Sort(addresses)
	return addresses
}
