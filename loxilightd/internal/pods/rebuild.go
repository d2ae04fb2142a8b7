// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/listing"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// Pods' records may be lost while the pods are still running. In that case, as much as possible is
// rebuilt from their Endpoints, leases and links, and no link is removed.

// damagedSuffix is the suffix of unreadable records, which are kept until the DEL of their
// interfaces.
const damagedSuffix = ".damaged"

// keptSuffix is the suffix of files that mark an unknown pod's link as kept.
const keptSuffix = ".kept"

func (s *Server) damagedPath(o ipam.Owner) string { return s.recordPath(o) + damagedSuffix }

// isDamaged reports whether the record of an interface is unreadable.
func (s *Server) isDamaged(o ipam.Owner) bool {
	_, err := os.Lstat(s.damagedPath(o))
	return err == nil
}

// dropDamaged deletes the unreadable record of an interface that no longer exists.
func (s *Server) dropDamaged(o ipam.Owner) { _ = os.Remove(s.damagedPath(o)) } // usually absent

// damaged returns the unreadable records that do not belong to a known interface.
func (s *Server) damaged() (paths []string) {
	all, _ := filepath.Glob(filepath.Join(s.StateDir, recordDir, "*.json"+damagedSuffix)) // the pattern is well formed
	known := map[string]bool{}
	for _, r := range s.all() {
		known[s.damagedPath(r.owner())] = true
	}
	return slices.DeleteFunc(all, func(path string) bool { return known[path] })
}

// rebuild takes over links that have no record. lost is set if even the directory of the records
// was missing.
func (s *Server) rebuild(devices map[string]string, lost bool) error {
	guards := map[string]guard{} // guards by device
	for _, o := range s.Objects.Owned(kindEndpoint) {
		g := guard{name: o.Name}
		if json.Unmarshal(o.Spec, &g.EndpointSpec) == nil { // it has already been decoded
			guards[g.Device] = g
		}
	}
	s.sweepMarks(devices)
	var unknown []string
	for _, device := range slices.Sorted(maps.Keys(devices)) {
		s.mu.Lock()
		_, known := s.names[device]
		s.mu.Unlock()
		if known {
			continue
		}
		r := s.rebuilt(device, devices[device], guards[device], lost)
		if r == nil {
			unknown = append(unknown, device)
			continue
		}
		if err := s.save(r); err != nil {
			return err
		}
		s.mu.Lock()
		s.pods[r.owner()], s.names[device] = r, r.owner()
		s.mu.Unlock()
		s.Log.Error("the record of a pod was lost; the pod continues, rebuilt from its Endpoint and leases", slog.String("object", r.Object),
			slog.String("container", r.ContainerID), slog.String("interface", r.IfName), slog.String("device", device))
	}
	lost = lost || len(s.damaged()) > 0
	for _, device := range unknown {
		if err := s.keep(device, devices[device], lost); err != nil {
			return err
		}
	}
	return nil
}

// guard is the Endpoint of a device; if its name is empty, there is none.
type guard struct {
	name string
	api.EndpointSpec
}

// rebuilt returns a record for the interface behind a device, rebuilt from other sources. It
// returns nil if too little is known, or if the record does not seem to have been lost.
func (s *Server) rebuilt(device, label string, g guard, lost bool) *record {
	o, ok := ownerIn(label)
	if !ok {
		o, ok = guessOwner(g.name, g.ContainerID)
	}
	s.mu.Lock()
	_, twice := s.pods[o]
	s.mu.Unlock()
	if !ok || twice {
		return nil
	}
	leases := s.Addresses.Leases()
	at := slices.IndexFunc(leases, func(l ipam.Lease) bool { return l.Owner == o })
	if g.name == "" && (at < 0 || !lost && !s.isDamaged(o)) {
		return nil
	}
	r := &record{
		ContainerID: o.ContainerID, IfName: o.IfName, Network: g.Network, Netns: g.Netns, Boot: s.Addresses.Boot(),
		Pod: g.Pod, Namespace: g.Namespace, UID: g.UID, Device: device, Object: g.name, MAC: g.MAC, Done: true, Rebuilt: true,
	}
	if at >= 0 {
		r.takeLease(&leases[at])
	}
	if r.Network == "" {
		r.Network = "default"
	}
	n, _ := s.Network(r.Network)
	r.Bridge, r.MTU, r.RouteMTU = n.Bridge, g.MTU, n.RouteMTU
	r.takeAddresses(g.Addresses, n.Subnets)
	r.Routes = defaults(&n, r)
	if r.MAC == "" {
		r.MAC = macOf(r).String()
	}
	if r.Object == "" {
		r.Object = objectName(o, r.Namespace, r.Pod)
	}
	r.Ports = s.portsOf(r.Object)
	return r
}

// ownerIn returns the owner that is contained in a link's label, in the format of record.link.
func ownerIn(label string) (o ipam.Owner, ok bool) {
	container, ifName, ok := strings.Cut(label[strings.LastIndex(label, " ")+1:], "/")
	return ipam.Owner{ContainerID: container, IfName: ifName}, ok && container != "" && ifName != ""
}

// guessOwner finds the interface by the usual interface names and the name of its Endpoint.
func guessOwner(object, container string) (ipam.Owner, bool) {
	for _, o := range usualOwners(container) {
		if container != "" && strings.HasSuffix(object, objectName(o, "", "")) {
			return o, true
		}
	}
	return ipam.Owner{}, false
}

// usualOwners returns a container's interfaces that have the usual names.
func usualOwners(container string) (list []ipam.Owner) {
	for i := range 16 {
		for _, kind := range []string{"eth", "net"} {
			list = append(list, ipam.Owner{ContainerID: container, IfName: kind + strconv.Itoa(i)})
		}
	}
	return list
}

// takeLease takes from a lease the fields that the Endpoint did not contain.
func (r *record) takeLease(l *ipam.Lease) {
	r.Addresses = slices.Clone(l.Addresses)
	if r.Network == "" {
		r.Network = l.Network
	}
	if r.Netns == "" {
		r.Netns = l.Netns
	}
	if space, pod, ok := strings.Cut(l.Pod, "/"); ok && r.Pod == "" {
		r.Namespace, r.Pod = space, pod
	}
}

// takeAddresses adds the addresses of the Endpoint that are not in the lease, and finds the
// gateways.
func (r *record) takeAddresses(texts []string, subnets []netip.Prefix) {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			continue
		}
		p := netip.PrefixFrom(a, a.BitLen())
		if i := slices.IndexFunc(subnets, func(subnet netip.Prefix) bool { return subnet.Contains(a) }); i >= 0 {
			p = netip.PrefixFrom(a, subnets[i].Bits())
		}
		r.Addresses = append(r.Addresses, p)
	}
	for _, p := range r.Addresses {
		gw := netip.Addr{}
		if slices.Contains(subnets, p.Masked()) {
			gw = ipam.Gateway(p)
		}
		r.Gateways = append(r.Gateways, gw)
	}
}

// portsOf returns the host ports that the rules of an Endpoint map to its pod.
func (s *Server) portsOf(object string) (list []portMapping) {
	for _, o := range s.Objects.Owned(api.KindNAT) {
		var spec api.NATSpec
		if !strings.HasPrefix(o.Name, object+"/") || json.Unmarshal(o.Spec, &spec) != nil || spec.Match == nil || spec.To == nil {
			continue
		}
		if len(spec.Match.Ports) != 1 || len(spec.To.Ports) != 1 || len(spec.Match.Protocol) != 1 || len(spec.Match.Destination) != 1 {
			continue // hostPorts creates no such rule
		}
		m := portMapping{Protocol: string(spec.Match.Protocol[0])}
		m.HostPort, _ = strconv.Atoi(string(spec.Match.Ports[0]))
		m.ContainerPort, _ = strconv.Atoi(string(spec.To.Ports[0]))
		if to := string(spec.Match.Destination[0]); !strings.HasPrefix(to, "group:") {
			m.HostIP = to
		}
		if m.check() == nil && !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// keep keeps a link about which too little is known, if the link's record may have been lost.
func (s *Server) keep(device, label string, lost bool) error {
	path := filepath.Join(s.StateDir, recordDir, device+keptSuffix)
	if _, err := os.Lstat(path); err != nil && !lost {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the link %s of a pod: %w", device, err)
	}
	o, _ := ownerIn(label)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[device], s.names[device] = o, o
	s.Log.Error("the link of an unknown pod is kept, because records of pods were damaged or lost",
		slog.String("device", device), slog.String("label", label))
	return nil
}

// unkeep removes the mark of a link that no longer exists.
func (s *Server) unkeep(device string) {
	// The mark is useless without the link.
	_ = os.Remove(filepath.Join(s.StateDir, recordDir, device+keptSuffix))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, device)
	delete(s.names, device)
}

// sweepMarks removes the marks of links that no longer exist.
func (s *Server) sweepMarks(devices map[string]string) {
	marks, _ := filepath.Glob(filepath.Join(s.StateDir, recordDir, "*"+keptSuffix)) // the pattern is well formed
	for _, path := range marks {
		if _, there := devices[strings.TrimSuffix(filepath.Base(path), keptSuffix)]; !there {
			_ = os.Remove(path) // retried the next time
		}
	}
}

// deleteKept removes a kept link whose interface has no record.
func (s *Server) deleteKept(ctx context.Context, o ipam.Owner) error {
	s.mu.Lock()
	all := maps.Clone(s.kept)
	s.mu.Unlock()
	for device, owner := range all {
		if owner != o {
			continue
		}
		if err := s.Links.Delete(ctx, device); err != nil {
			return err
		}
		s.unkeep(device)
	}
	return nil
}

// sweepKept removes the marks of links that were deleted with their pods.
func (s *Server) sweepKept(devices map[string]string) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.kept))
	s.mu.Unlock()
	for _, device := range all {
		if _, there := devices[device]; !there {
			s.unkeep(device)
		}
	}
}

// maxNamed is the maximum number of items of one kind that are named in a problem.
const maxNamed = 5

// Problems describes damaged or lost records, until the pods concerned are deleted.
func (s *Server) Problems() (list []string) {
	var rebuilt []string
	for _, r := range s.all() {
		if name := podOf(r); r.Rebuilt && name != "" {
			rebuilt = append(rebuilt, fmt.Sprintf("pod %s (%s, %s)", name, r.owner(), r.Device))
		} else if r.Rebuilt {
			rebuilt = append(rebuilt, fmt.Sprintf("%s (%s)", r.owner(), r.Device))
		}
	}
	if len(rebuilt) > 0 {
		list = append(list, "the records in "+filepath.Join(s.StateDir, recordDir)+" were damaged or lost for "+some(rebuilt)+
			": the pods continue with their Endpoints and leases; recreate them when convenient")
	}
	s.mu.Lock()
	kept := slices.Collect(maps.Keys(s.kept))
	s.mu.Unlock()
	if len(kept) > 0 {
		list = append(list, "records of pods were damaged or lost, and the pods of these links are unknown, so the links are kept: "+some(kept)+
			": recreate their pods")
	}
	if damaged := s.damaged(); len(damaged) > 0 {
		list = append(list, "unreadable records of unknown pods were set aside: "+some(damaged)+
			": check that all pods work, then remove these files")
	}
	if damaged := s.damagedQueued(); len(damaged) > 0 {
		list = append(list, "DEL commands that were queued cannot be read and were set aside, and their pods are unknown: "+some(damaged)+
			": run the garbage collection of the container runtime, then remove these files")
	}
	return list
}

// some formats the first items of a list.
func some(list []string) string {
	slices.Sort(list)
	return listing.First(list, maxNamed)
}

// recallPlugin determines from the configuration of a DEL which plugin assigned the addresses of an
// interface whose record was lost.
func (s *Server) recallPlugin(r *record, p *api.CNIParams, c *conf) {
	leased := slices.ContainsFunc(s.Addresses.Leases(), func(l ipam.Lease) bool { return l.Owner == r.owner() })
	if r.Rebuilt && r.Plugin == nil && c.ipam.Type != "" && !leased {
		n, _ := s.Network(c.Network)
		g := s.newPlugin(p, c, &n)
		if _, err := s.findPlugin(g.Type); err == nil {
			g.Config = without(g.Config, "ipam", "routes")
			r.Plugin = g
		}
	}
}
