// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// networkPage is how many entries are requested at a time.
const networkPage = 500

var networkViews = map[string]datapath.NetworkView{
	api.NetworkBridges: datapath.ViewBridges, api.NetworkFDB: datapath.ViewFDB,
	api.NetworkNeighbors: datapath.ViewNeighbours, api.NetworkRoutes: datapath.ViewRoutes,
}

// networkListResult is an [api.NetworkListResult] with encoded items.
type networkListResult struct {
	Items    []json.RawMessage `json:"items"`
	Continue string            `json:"continue,omitempty"`
}

// networkPlace is a position in a listing.
type networkPlace struct {
	netns string
	skip  int
}

func (s *Server) networkList(ctx context.Context, _ Caller, p *api.NetworkListParams) (any, *api.Error) {
	view, ok := networkViews[p.What]
	if !ok {
		return nil, invalid("what", "%q is not one of %s", decode.Shorten(p.What), strings.Join(api.NetworkViews, ", "))
	}
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	if p.Netns != "" && !slices.Contains(api.Netns, p.Netns) {
		return nil, invalid("netns", "%q is not one of %s", decode.Shorten(p.Netns), strings.Join(api.Netns, ", "))
	}
	if s.Network == nil {
		return nil, api.Errorf(api.ReasonUnsupported, "this data plane does not report the kernel's own forwarding tables")
	}
	at, err := parsePlace(p)
	if err != nil {
		return nil, err
	}
	l := &networkListing{Server: s, limit: p.Limit, result: &networkListResult{Items: []json.RawMessage{}}, room: maxPage}
	for {
		done, lerr := l.read(ctx, view, &at)
		if lerr != nil {
			return nil, planeError(lerr)
		}
		switch {
		case !done:
			l.result.Continue = at.netns + "/" + strconv.Itoa(at.skip)
			return l.result, nil
		case p.Netns != "" || at.netns == "switch":
			return l.result, nil
		}
		at = networkPlace{netns: "switch"}
	}
}

// parsePlace returns where a listing starts or continues.
func parsePlace(p *api.NetworkListParams) (at networkPlace, err *api.Error) {
	if p.Continue == "" {
		if at.netns = p.Netns; at.netns == "" {
			at.netns = "host"
		}
		return at, nil
	}
	netns, number, _ := strings.Cut(p.Continue, "/")
	skip, nerr := strconv.Atoi(number)
	if nerr != nil || skip < 0 || netns != "host" && netns != "switch" || p.Netns != "" && p.Netns != netns {
		return at, invalid("continue", "%q is not a continue value of this request", decode.Shorten(p.Continue))
	}
	return networkPlace{netns, skip}, nil
}

// networkListing fills one reply.
type networkListing struct {
	*Server
	limit  int
	result *networkListResult
	room   int
}

// read adds entries, starting at the position "at", until the namespace has no more entries (done
// is then true) or the reply is full.
func (l *networkListing) read(ctx context.Context, view datapath.NetworkView, at *networkPlace) (done bool, err error) {
	for {
		count := networkPage
		if l.limit > 0 {
			count = min(count, l.limit-len(l.result.Items))
		}
		entries, more, err := l.Network.List(ctx, view, at.netns == "switch", at.skip, count)
		if err != nil {
			return false, err
		}
		for i := range entries {
			text, err := json.Marshal(l.networkEntryOf(&entries[i], at.netns, view))
			if err != nil {
				return false, err
			}
			if len(text)+1 > l.room {
				if len(l.result.Items) == 0 {
					return false, fmt.Errorf("%s: the entry is longer than a reply can be", entries[i].Device)
				}
				return false, nil
			}
			l.result.Items = append(l.result.Items, text)
			l.room -= len(text) + 1
			at.skip++
		}
		if !more {
			return true, nil
		}
		if l.limit > 0 && len(l.result.Items) >= l.limit {
			return false, nil
		}
	}
}

func (s *Server) networkEntryOf(e *datapath.NetworkEntry, netns string, view datapath.NetworkView) *api.NetworkEntry {
	x := &api.NetworkEntry{
		Netns: netns, Device: e.Device, Origin: e.Origin, Up: e.Up, VLANFiltering: e.VLANFiltering, MAC: e.MAC.String(),
		Bridge: e.Bridge, VLAN: e.VLAN, State: e.State, MTU: e.MTU,
	}
	if e.Address.IsValid() {
		x.Address = e.Address.String()
	}
	if e.Object != "" {
		kind := state.KindBridge
		if view == datapath.ViewRoutes {
			kind = state.KindRoute
		}
		x.Object = kind + "/" + e.Object
		if pods := s.Store.Snapshot().PodNetworks(); strings.Contains(e.Object, "#") && len(pods) > 0 {
			x.Object = pods[0].Key.String() // the bridge serves all PodNetworks; only the first is named
		}
		if rest, ok := strings.CutPrefix(e.Object, "peer "); ok { // the format is peer NAME PREFIX
			peer, _, _ := strings.Cut(rest, " ")
			x.Object = state.KindPeer + "/" + peer
		}
	}
	for _, p := range e.Addresses {
		x.Addresses = append(x.Addresses, p.String())
	}
	for i := range e.Ports {
		p := &e.Ports[i]
		x.Ports = append(x.Ports, api.NetworkPort{Device: p.Device, Up: p.Up, PVID: p.PVID, VLANs: rangeTexts(p.VLANs), Untagged: rangeTexts(p.Untagged)})
	}
	if r := e.Route; r != nil {
		x.Prefix, x.Metric, x.Device = r.Prefix.String(), r.Metric, ""
		x.Type = api.RouteTypes[r.Type]
		if r.Source.IsValid() {
			x.Source = r.Source.String()
		}
		for _, h := range r.NextHops {
			hop := api.NextHop{Device: h.Device, Weight: int(h.Weight)}
			if h.Via.IsValid() {
				hop.Via = h.Via.String()
			}
			x.NextHops = append(x.NextHops, hop)
		}
	}
	return x
}

// rangeTexts formats VLANs as numbers and ranges.
func rangeTexts(ranges []datapath.VLANRange) (texts []string) {
	for _, r := range ranges {
		text := strconv.Itoa(int(r.First))
		if r.Last != r.First {
			text += "-" + strconv.Itoa(int(r.Last))
		}
		texts = append(texts, text)
	}
	return texts
}
