// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/loxilight/loxilight/api"
)

// recover takes over the finished interfaces of an earlier run and removes the others. It reports
// whether it succeeded; otherwise it must be repeated.
func (s *Server) recover(ctx context.Context) bool {
	if err := s.takeOver(ctx); err != nil {
		s.Log.Error("leftovers of pods from an earlier run are not removed yet; ADD waits until they are", slog.Any("error", err))
		return false
	}
	s.drain(ctx)
	return true
}

func (s *Server) takeOver(ctx context.Context) error {
	dir := filepath.Join(s.StateDir, recordDir)
	_, noDir := os.Stat(dir)
	list, err := s.load()
	if err != nil {
		return err
	}
	devices, err := s.Links.Devices(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	for _, r := range list {
		s.pods[r.owner()], s.names[r.Device] = r, r.owner()
	}
	s.mu.Unlock()
	if err := s.rebuild(devices, errors.Is(noDir, fs.ErrNotExist)); err != nil {
		return err
	}
	for _, r := range list {
		why := ""
		switch _, there := devices[r.Device]; {
		case r.Boot != s.Addresses.Boot():
			why = "the machine has rebooted since"
		case !r.Done:
			why = "it was not finished"
		case !there && netnsDeleted(r.Netns):
			why = "its network namespace no longer exists"
		}
		if why != "" {
			if err := s.collect(ctx, r, why); err != nil {
				return err
			}
		}
	}
	return s.clearStrays(ctx, devices)
}

// clearStrays removes links and objects that do not belong to any interface, and restores missing
// objects of existing interfaces.
func (s *Server) clearStrays(ctx context.Context, devices map[string]string) error {
	wanted := map[api.ObjectRef]bool{}
	var puts []api.Object
	for _, r := range s.all() {
		for _, o := range append([]api.Object{r.endpoint()}, r.hostPorts()...) {
			ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
			wanted[ref] = true
			if _, ok := s.Objects.Status(ref); !ok {
				puts = append(puts, o)
			}
		}
	}
	for device := range devices {
		s.mu.Lock()
		_, taken := s.names[device]
		s.mu.Unlock()
		if taken {
			continue
		}
		s.Log.Info("the link of an unknown pod is removed", slog.String("device", device))
		if err := s.Links.Delete(ctx, device); err != nil {
			return err
		}
	}
	var strays []api.ObjectRef
	for _, kind := range []string{kindEndpoint, api.KindNAT} {
		for _, o := range s.Objects.Owned(kind) {
			if ref := (api.ObjectRef{Kind: o.Kind, Name: o.Name}); !wanted[ref] {
				strays = append(strays, ref)
			}
		}
	}
	if slices.ContainsFunc(puts, func(o api.Object) bool { return o.Kind == api.KindNAT }) {
		var refused *api.Error
		if puts, refused = s.withGroups(ctx, puts); refused != nil { // the groups may have been lost too
			return refused
		}
	}
	if len(puts)+len(strays) > 0 {
		if _, err := s.changes.do(ctx, puts, strays); err != nil {
			return err
		}
	}
	return s.clearLeases(ctx)
}

// clearLeases releases addresses that do not belong to any interface.
func (s *Server) clearLeases(ctx context.Context) error {
	for _, l := range s.Addresses.Leases() {
		s.mu.Lock()
		r := s.pods[l.Owner]
		s.mu.Unlock()
		if r != nil || l.Boot == s.Addresses.Boot() && s.isDamaged(l.Owner) {
			continue
		}
		s.Log.Info("releasing addresses without a pod", slog.String("container", l.ContainerID), slog.Any("addresses", l.Addresses))
		if err := s.Addresses.Release(ctx, l.Owner); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes interfaces whose pods no longer exist: the pod's network namespace no longer
// exists, and neither does the link.
func (s *Server) sweep(ctx context.Context) {
	if !s.hasLinks() {
		return
	}
	devices, err := s.Links.Devices(ctx)
	if err != nil {
		return // retried the next time
	}
	s.sweepKept(devices)
	for _, r := range s.all() {
		if _, there := devices[r.Device]; !r.Done || there || !netnsDeleted(r.Netns) {
			continue
		}
		if err := s.collect(ctx, r, "its network namespace no longer exists"); err != nil {
			s.Log.Warn("the remains of a pod could not be removed", slog.Any("error", err))
		}
	}
}

// hasLinks reports whether there are pods, or links of unknown pods.
func (s *Server) hasLinks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pods)+len(s.kept) > 0
}

func netnsDeleted(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
