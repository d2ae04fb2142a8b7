// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// routeOwner is the owner, a peer or an endpoint, of routes that belong to no Route. The names of
// its routes begin with it.
type routeOwner string

const (
	peerMark     = "peer "
	endpointMark = "endpoint "
)

func peerOwner(name datapath.PeerName) routeOwner { return routeOwner(peerMark + string(name)) }
func endpointOwner(name datapath.EndpointName) routeOwner {
	return routeOwner(endpointMark + string(name))
}

// route returns the name of a route of the owner.
func (o routeOwner) route(what string) datapath.RouteName {
	return datapath.RouteName(string(o) + " " + what)
}

// ownerOf returns the owner of a route, or an empty owner if the route belongs to a Route.
func ownerOf(route string) routeOwner {
	for _, mark := range []string{peerMark, endpointMark} {
		if rest, ok := strings.CutPrefix(route, mark); ok {
			name, _, _ := strings.Cut(rest, " ")
			return routeOwner(mark + name)
		}
	}
	return ""
}

// routeOwners returns the names of the owners of a kind that have routes in the journal.
func (j *journal) routeOwners(mark string) map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := map[string]bool{}
	for route := range j.current.Routes {
		if name, ok := strings.CutPrefix(string(ownerOf(route)), mark); ok {
			all[name] = true
		}
	}
	return all
}

// removeBut removes the routes of an owner that are not in keep.
func (r *routes) removeBut(ctx context.Context, owner routeOwner, keep map[datapath.RouteName]datapath.Route) error {
	gone := map[datapath.RouteName]bool{}
	r.n.journal.mu.Lock()
	for route := range r.n.journal.current.Routes {
		if route, _, _ = strings.Cut(route, beforeMark); ownerOf(route) == owner {
			gone[datapath.RouteName(route)] = true
		}
	}
	r.n.journal.mu.Unlock()
	for route := range r.wantedOf(owner) {
		gone[route] = true
	}
	var err error
	for route := range gone {
		if _, kept := keep[route]; !kept {
			err = errors.Join(err, r.Delete(ctx, route))
		}
	}
	return err
}

// wantOfOwner records whether a route is wanted, if it belongs to an owner. r.mu is held.
func (r *routes) wantOfOwner(name datapath.RouteName, wanted bool) {
	owner := ownerOf(string(name))
	switch {
	case owner == "":
	case !wanted:
		if delete(r.owned[owner], name); len(r.owned[owner]) == 0 {
			delete(r.owned, owner)
		}
	case r.owned[owner] == nil:
		r.owned[owner] = map[datapath.RouteName]bool{name: true}
	default:
		r.owned[owner][name] = true
	}
}

// wantedOf returns the routes of an owner according to the last Update.
func (r *routes) wantedOf(owner routeOwner) map[datapath.RouteName]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.owned[owner])
}

// rival returns a different Route that has precedence at the same place, or an empty name if no
// such Route exists. The store allows one Route for each place, but if host and switch have become
// one namespace, each of them may have a Route there: the first by name has precedence.
func (r *routes) rival(name datapath.RouteName, value *datapath.Route) (first datapath.RouteName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.placeOf(value)
	if !r.n.isHost() || ownerOf(string(name)) != "" || r.places[at] < 2 {
		return ""
	}
	for other, v := range r.wanted {
		if other < name && (first == "" || other < first) && v.Switch != value.Switch && r.placeOf(&v) == at && ownerOf(string(other)) == "" {
			first = other
		}
	}
	return first
}
