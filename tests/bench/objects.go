// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// object builds an API object owned by bench.
func object(kind, name string, spec any) (api.Object, error) {
	raw, err := json.Marshal(spec)
	return api.Object{Kind: kind, Name: name, Owner: "bench", Spec: raw}, err
}

// requestBytes is the maximum size of the objects of one request; requests are limited to 1 MiB.
const requestBytes = 900 << 10

// apply sends objects to the daemon, as one change, and returns when it is in force for packets.
func (d *loxilight) apply(ctx context.Context, objects []api.Object) error {
	var params api.ApplyParams
	for len(objects) > 0 {
		size, count := 0, 0
		for count < len(objects) && (count == 0 || size+len(objects[count].Spec) < requestBytes) {
			const around = 100 // bytes of an object in addition to its spec
			size += len(objects[count].Spec) + around
			count++
		}
		params.Objects, objects = objects[:count], objects[count:]
		params.More = len(objects) > 0
		if params.More && params.Transaction == "" {
			params.Transaction = client.NewRequestID()
		}
		if !params.More {
			params.Wait = api.Duration(daemonPatience)
		}
		if err := d.change(ctx, api.MethodApply, params); err != nil {
			return err
		}
	}
	return nil
}

// isUnsupported reports whether the daemon does not support the request at all.
func isUnsupported(err error) bool {
	var failed *api.Error
	return errors.As(err, &failed) && failed.Reason() == api.ReasonUnsupported
}

// masquerade makes the daemon masquerade packets that leave through a device.
func (d *loxilight) masquerade(ctx context.Context, device string) error {
	rule, err := object(api.KindNAT, "bench", api.NATSpec{Type: "masquerade", Match: &api.Match{Out: words(device)}})
	if err != nil {
		return err
	}
	return d.apply(ctx, []api.Object{rule})
}

func words(texts ...string) (list api.Words) {
	for _, text := range texts {
		list = append(list, api.Word(text))
	}
	return list
}

const (
	groupCount = 2       // address groups of the largest set of rules
	groupSize  = 100_000 // prefixes of each
	groupPart  = 10_000  // of them in one object
)

// firewall configures the given number of rules: only the last one, which allows, matches the
// client's packets to the backends, but each of the others matches some of their fields. With
// groups, some of the rules match groups of prefixes.
func (d *loxilight) firewall(ctx context.Context, rules int, groups bool) error {
	var objects []api.Object
	var err error
	add := func(kind, name string, spec any) {
		o, failed := object(kind, name, spec)
		objects, err = append(objects, o), errors.Join(err, failed)
	}
	if groups {
		for g := range groupCount {
			addGroup(add, g)
		}
	}
	for i := range rules - 1 {
		add(api.KindFirewallRule, fmt.Sprintf("rule-%05d", i), ruleAt(i, groups))
	}
	last := int32(rules)
	add(api.KindFirewallRule, "last", api.FirewallRuleSpec{Priority: &last, Action: "allow",
		Match: &api.Match{Source: words("10.0.0.0/8"), Protocol: words("udp"), Ports: words("1024-65535")}})
	if err != nil {
		return err
	}
	return d.apply(ctx, objects)
}

// addGroup adds a group of prefixes of 28 to 32 bits, in parts.
func addGroup(add func(kind, name string, spec any), g int) {
	var parts []api.Member
	for part := range groupSize / groupPart {
		name := fmt.Sprintf("group-%d-%d", g, part)
		parts = append(parts, api.Member{Text: "group:" + name})
		var members []api.Member
		for i := range groupPart {
			n := part*groupPart + i
			members = append(members, api.Member{Text: fmt.Sprintf("%d.%d.%d.%d/%d", 20+g, n>>12, n>>4&0xff, n&0xf<<4, 28+n%5)})
		}
		add(api.KindAddressGroup, name, api.AddressGroupSpec{Members: members})
	}
	add(api.KindAddressGroup, fmt.Sprintf("group-%d", g), api.AddressGroupSpec{Members: parts})
}

// ruleAt returns the i-th rule. Measured packets come from 10.2.0.0/16, go to 10.1.0.0/24 or
// 10.3.0.0/24, over UDP, to backendPort.
func ruleAt(i int, groups bool) api.FirewallRuleSpec {
	priority := int32(i)
	spec := api.FirewallRuleSpec{Priority: &priority, Action: "deny"}
	other := fmt.Sprintf("10.%d.%d.0/24", 16+i>>8&0x7f, i&0xff)
	switch {
	case groups && i%100 == 0:
		spec.Match = &api.Match{Source: words(fmt.Sprintf("group:group-%d", i/100%groupCount)), Protocol: words("udp")}
	case i%4 == 0: // a different destination
		spec.Match = &api.Match{Source: words("10.2.0.0/16"), Destination: words(other), Protocol: words("udp")}
	case i%4 == 1: // a different port
		spec.Match = &api.Match{Source: words("10.0.0.0/8"), Protocol: words("udp"), Ports: words(fmt.Sprint(10_000 + i%50_000))}
	case i%4 == 2: // a different source
		spec.Match = &api.Match{Source: words(other), Destination: words("10.0.0.0/8"), Ports: words(fmt.Sprint(backendPort)), Protocol: words("tcp", "udp")}
	default: // a different protocol
		spec.Match = &api.Match{Source: words("10.2.0.0/15"), Destination: words("10.0.0.0/8"), Protocol: words("tcp"), Ports: words(fmt.Sprintf("%d-%d", 1+i%1000, 7000+i%1000))}
	}
	return spec
}
