// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/dirwatch"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// While no daemon answers, plugins queue each DEL as a file.

func (s *Server) queueDir() string { return filepath.Join(s.StateDir, api.CNIQueue) }

// unfinishedAge is the age at which a file that a plugin has left unfinished is deleted.
const unfinishedAge = time.Minute

// drainAtOnce is how many queued commands are carried out concurrently.
const drainAtOnce = 32

// watchQueue watches the queue, or its parent until the queue exists. It returns false if changes are
// not reported.
func (s *Server) watchQueue(w *dirwatch.Watcher) bool {
	err := w.Add(s.queueDir())
	if errors.Is(err, fs.ErrNotExist) {
		err = w.Add(s.StateDir)
	}
	return err == nil
}

// drain carries out the queued commands, and reports whether there were any. Commands that fail stay
// queued.
func (s *Server) drain(ctx context.Context) (any bool) {
	entries, err := os.ReadDir(s.queueDir())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.Log.Error("the queue of DEL commands cannot be read", slog.Any("error", err))
		}
		return false
	}
	var all sync.WaitGroup
	defer all.Wait()
	turns := make(chan struct{}, drainAtOnce)
	for _, e := range entries {
		path := filepath.Join(s.queueDir(), e.Name())
		if strings.HasPrefix(e.Name(), ".new-") {
			if i, err := e.Info(); err == nil && time.Since(i.ModTime()) > unfinishedAge {
				_ = os.Remove(path) // useless
			}
			continue
		}
		if strings.HasSuffix(e.Name(), ".json") {
			turns <- struct{}{}
			all.Go(func() { s.drainFile(ctx, path); <-turns })
		}
	}
	return len(entries) > 0
}

func (s *Server) drainFile(ctx context.Context, path string) {
	p, c := s.readQueued(path)
	if p == nil {
		return
	}
	release, err := s.hold(ctx, ownerOf(p))
	if err != nil {
		return
	}
	defer release()
	// The file may no longer exist, because an ADD for the same interface has already carried out
	// the DEL.
	if _, serr := os.Stat(path); serr != nil {
		return
	}
	if err := s.doQueued(ctx, path, p, c); err != nil {
		s.Log.Warn("a queued DEL could not be carried out and stays queued", slog.String("container", p.ContainerID),
			slog.String("interface", p.IfName), slog.Any("error", err))
	}
}

// queued reports whether a DEL is queued for an interface.
func (s *Server) queued(o ipam.Owner) bool {
	_, err := os.Stat(s.queuedPath(o))
	return err == nil
}

func (s *Server) queuedPath(o ipam.Owner) string {
	return filepath.Join(s.queueDir(), sumOf(o)+".json")
}

// lockAndDrain is like drainOne, for a caller that does not hold the lock on the interface.
func (s *Server) lockAndDrain(ctx context.Context, o ipam.Owner) *api.Error {
	release, err := s.hold(ctx, o)
	if err != nil {
		return err
	}
	defer release()
	return s.drainOne(ctx, o)
}

// drainOne carries out the DEL that is queued for an interface, if any. The caller holds the lock
// on the interface.
func (s *Server) drainOne(ctx context.Context, o ipam.Owner) *api.Error {
	if !s.queued(o) {
		return nil
	}
	path := s.queuedPath(o)
	p, c := s.readQueued(path)
	if p == nil {
		return nil
	}
	return s.doQueued(ctx, path, p, c)
}

func (s *Server) doQueued(ctx context.Context, path string, p *api.CNIParams, c *conf) *api.Error {
	if err := s.delLocked(ctx, p, c); err != nil {
		return err
	}
	s.Log.Info("queued DEL carried out", slog.String("container", p.ContainerID), slog.String("interface", p.IfName))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("queued DEL: %v", err)
	}
	return nil
}

// readQueued reads one file; it returns nil if the file is unusable or no longer exists.
func (s *Server) readQueued(path string) (*api.CNIParams, *conf) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	p := &api.CNIParams{}
	if err == nil {
		if err = json.Unmarshal(text, p); err != nil {
			if o, ok := s.queuedOwner(path, text); ok {
				s.Log.Warn("a queued DEL is damaged; its interface was determined from the file name", slog.String("file", path), slog.Any("error", err))
				p, err = &api.CNIParams{ContainerID: o.ContainerID, IfName: o.IfName}, nil
			}
		}
	}
	p.Command = api.CNIDel
	if err == nil && filepath.Base(path) != sumOf(ownerOf(p))+".json" {
		err = errors.New("its content and its file name refer to different interfaces")
	}
	if err == nil {
		c, refused := parseConf(p)
		if refused == nil {
			return p, c
		}
		err = refused
	}
	s.Log.Error("a queued DEL cannot be read and is set aside", slog.String("file", path), slog.Any("error", err))
	if err := os.Rename(path, path+damagedSuffix); err != nil {
		s.Log.Error("it could not be set aside", slog.Any("error", err))
	}
	return nil, nil
}

// queuedOwner finds the interface of an unreadable file: its first bytes may name the interface,
// and its file name is a checksum of the interface.
func (s *Server) queuedOwner(path string, text []byte) (ipam.Owner, bool) {
	var owners []ipam.Owner
	if container := containerField.FindSubmatch(text); container != nil {
		owners = usualOwners(string(container[1]))
		if ifName := ifNameField.FindSubmatch(text); ifName != nil {
			owners = append(owners, ipam.Owner{ContainerID: string(container[1]), IfName: string(ifName[1])})
		}
	}
	for _, r := range s.all() {
		owners = append(owners, r.owner())
	}
	for _, l := range s.Addresses.Leases() {
		owners = append(owners, l.Owner)
	}
	i := slices.IndexFunc(owners, func(o ipam.Owner) bool { return sumOf(o)+".json" == filepath.Base(path) })
	if i < 0 {
		return ipam.Owner{}, false
	}
	return owners[i], true
}

// These match the fields at the beginning of a truncated file.
var (
	containerField = regexp.MustCompile(`"containerID":"([^"\\]+)"`)
	ifNameField    = regexp.MustCompile(`"ifName":"([^"\\]+)"`)
)

// damagedQueued returns the unreadable files.
func (s *Server) damagedQueued() []string {
	list, _ := filepath.Glob(filepath.Join(s.queueDir(), "*.json"+damagedSuffix)) // the pattern is well formed
	return list
}
