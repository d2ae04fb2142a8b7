// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// del removes an interface. It is not an error if the interface does not exist.
func (s *Server) del(ctx context.Context, p *api.CNIParams, c *conf) *api.Error {
	// Complete the removal even if the runtime gives up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	release, err := s.hold(ctx, ownerOf(p))
	if err != nil {
		return err
	}
	defer release()
	return s.delLocked(ctx, p, c)
}

// delLocked is like del, for a caller that holds the lock of the interface.
func (s *Server) delLocked(ctx context.Context, p *api.CNIParams, c *conf) *api.Error {
	o := ownerOf(p)
	s.mu.Lock()
	r := s.pods[o]
	s.mu.Unlock()
	if r != nil {
		s.recallPlugin(r, p, c)
		return s.remove(ctx, r)
	}
	if c.ipam.Type != "" { // the plugin may have state that we do not have
		if err := s.delByPlugin(ctx, p, c); err != nil {
			return err
		}
	}
	if err := s.Addresses.Release(ctx, o); err != nil {
		return failed("release the addresses of %s: %v", o, err)
	}
	if err := s.deleteKept(ctx, o); err != nil {
		return linkError(err)
	}
	s.dropDamaged(o)
	return nil
}

// delByPlugin runs the configured plugin to release the addresses of an interface that has no
// record. If the plugin is not installed, there are no addresses to release.
func (s *Server) delByPlugin(ctx context.Context, p *api.CNIParams, c *conf) *api.Error {
	n, _ := s.Network(c.Network)
	g := s.newPlugin(p, c, &n)
	if _, err := s.findPlugin(g.Type); err != nil {
		s.Log.Warn("the IPAM plugin of an unknown pod does not exist; it is not asked to release addresses",
			slog.String("container", p.ContainerID), slog.String("plugin", c.ipam.Type))
		return nil
	}
	g.Config = without(g.Config, "ipam", "routes")
	return s.runPlugin(ctx, g, api.CNIDel, ownerOf(p), p.Netns, nil)
}

// without removes a field from a section of a configuration.
func without(text json.RawMessage, at, field string) json.RawMessage {
	var whole, section map[string]json.RawMessage
	if json.Unmarshal(text, &whole) != nil || json.Unmarshal(whole[at], &section) != nil {
		return text
	}
	delete(section, field)
	raw, err := json.Marshal(section)
	if err == nil {
		whole[at] = raw
		raw, err = json.Marshal(whole)
	}
	if err != nil {
		return text // cannot happen: v was decoded from JSON
	}
	return raw
}

// remove removes all resources of an interface. remove may be repeated. The link is set down before
// its source guard is removed, so that no unguarded packet enters; the record is deleted last.
func (s *Server) remove(ctx context.Context, r *record) *api.Error {
	if s.ExpectRemoval != nil {
		defer s.ExpectRemoval(r.Object)()
	}
	if err := s.Links.Shut(ctx, r.Device); err != nil {
		return linkError(err)
	}
	objects := r.objects()
	revision, err := s.changes.do(ctx, nil, objects)
	if err != nil {
		return objectError(err)
	}
	bounded, cancel := context.WithTimeout(ctx, releaseTimeout)
	if err := s.Objects.Ready(bounded, revision, objects); err != nil {
		s.Log.Warn("the data plane does not release a pod in time", slog.String("device", r.Device), slog.Any("error", err))
	}
	cancel()
	if err := s.Links.Delete(ctx, r.Device); err != nil {
		return linkError(err)
	}
	if r.Plugin != nil {
		if err := s.runPlugin(ctx, r.Plugin, api.CNIDel, r.owner(), r.Netns, nil); err != nil {
			return err
		}
	} else if err := s.Addresses.Release(ctx, r.owner()); err != nil {
		return failed("release the addresses of %s: %v", r.owner(), err)
	}
	return joined(s.forget(r))
}

// objects returns all objects that this package may have put into the desired state for the
// interface.
func (r *record) objects() []api.ObjectRef {
	return append([]api.ObjectRef{{Kind: kindEndpoint, Name: r.Object}}, refsOf(r.hostPorts())...)
}

// gc removes the interfaces of a network that the runtime no longer lists.
func (s *Server) gc(ctx context.Context, c *conf) *api.Error {
	if !c.Valid.set {
		return badConfig("cni.dev/valid-attachments", "is missing: without it, all interfaces of this network would be deleted")
	}
	valid := map[ipam.Owner]bool{}
	for i, a := range c.Valid.list {
		if a.ContainerID == "" || a.IfName == "" {
			return badConfig(fmt.Sprintf("cni.dev/valid-attachments[%d]", i), "has no containerID or no ifname, so that its interface would be deleted")
		}
		valid[ipam.Owner{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	var errs []error
	for _, r := range s.all() {
		if r.Name != c.Name || valid[r.owner()] {
			continue
		}
		if err := s.collect(ctx, r, "the runtime no longer lists it"); err != nil {
			errs = append(errs, err)
		}
	}
	return joined(errs...)
}

// collect removes an interface without a request to do so.
func (s *Server) collect(ctx context.Context, r *record, why string) error {
	release, err := s.hold(ctx, r.owner())
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	current := s.pods[r.owner()] == r
	s.mu.Unlock()
	if !current {
		return nil // it was removed in the meantime
	}
	s.Log.Info("the remains of a pod are removed", slog.String("container", r.ContainerID), slog.String("interface", r.IfName),
		slog.String("device", r.Device), slog.String("cause", why))
	if err := s.remove(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", r.owner(), err)
	}
	return nil
}

// all returns all interfaces.
func (s *Server) all() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*record, 0, len(s.pods))
	for _, r := range s.pods {
		list = append(list, r)
	}
	return list
}
