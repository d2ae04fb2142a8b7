// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Leases lists pods' addresses and their owners. It is safe for concurrent use.
type Leases interface {
	// Leases returns all leases, ordered by network and owner.
	Leases() []ipam.Lease
	// Pools returns the usage of the subnets, ordered by network and subnet.
	Pools() []ipam.Pool
	// Gone returns why the owner of a lease can no longer exist, or an empty string if it may
	// exist.
	Gone(ipam.Lease) string
	// Problem describes a past or present fault in the storage of leases. It returns an empty
	// string if there is no fault.
	Problem() string
}

// addressesListResult is an [api.AddressesListResult] with encoded items.
type addressesListResult struct {
	Items    []json.RawMessage `json:"items"`
	Continue string            `json:"continue,omitempty"`
}

func (s *Server) addressesList(_ context.Context, _ Caller, p *api.AddressesListParams) (any, *api.Error) {
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	result := &addressesListResult{Items: []json.RawMessage{}}
	if s.Leases == nil {
		return result, nil
	}
	room, last := maxPage, ""
	from := strings.Split(p.Continue, " ")
	if p.Continue != "" && len(from) != 3 {
		return nil, invalid("continue", "%q is not a continue value of this request", decode.Shorten(p.Continue))
	}
	for _, l := range s.Leases.Leases() {
		place := []string{l.Network, l.ContainerID, l.IfName}
		if p.Network != "" && l.Network != p.Network || p.Continue != "" && slices.Compare(place, from) <= 0 {
			continue
		}
		text, err := json.Marshal(s.leaseOf(&l))
		if err != nil {
			return nil, api.FromError(err)
		}
		if room -= len(text) + 1; room < 0 || p.Limit > 0 && len(result.Items) == p.Limit {
			result.Continue = last
			return result, nil
		}
		result.Items = append(result.Items, text)
		last = strings.Join(place, " ")
	}
	return result, nil
}

func (s *Server) leaseOf(l *ipam.Lease) *api.AddressLease {
	x := &api.AddressLease{
		Network: l.Network, Pod: l.Pod, ContainerID: l.ContainerID, IfName: l.IfName, Netns: l.Netns,
		Since: l.Since.UTC().Format(time.RFC3339), Gone: s.Leases.Gone(*l), Addresses: []string{},
	}
	for _, a := range l.Addresses {
		x.Addresses = append(x.Addresses, a.String())
	}
	return x
}

// poolTable is the prefix of the names of the pools in the usage tables.
const poolTable = "addresses "

// withPools adds the pods' address pools to usage.
func (s *Server) withPools(usage map[string]datapath.Usage) {
	if s.Leases == nil {
		return
	}
	for _, p := range s.Leases.Pools() {
		usage[poolTable+p.Subnet.String()] = datapath.Usage{Used: p.Used, Size: p.Size}
	}
}

func isPool(table string) bool { return strings.HasPrefix(table, poolTable) }

func (s *Server) podNetworkStatus(o *state.Object) *api.PodNetworkStatus {
	st := &api.PodNetworkStatus{Status: s.statusOf(o.Key), MTU: s.Progress.PodMTU()}
	used := map[string]ipam.Pool{}
	if s.Leases != nil {
		for _, p := range s.Leases.Pools() {
			used[p.Subnet.String()] = p
		}
	}
	for _, subnet := range o.Value.(*state.PodNetwork).Subnets {
		p := used[subnet.String()]
		st.Subnets = append(st.Subnets, api.PodSubnet{
			Subnet: subnet.String(), Gateway: ipam.Gateway(subnet).String(), Host: ipam.Host(subnet).String(), Used: p.Used, Size: p.Size,
		})
	}
	return st
}
