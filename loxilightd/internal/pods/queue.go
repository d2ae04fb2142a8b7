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
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// What plugins leave where no daemon answers them: a file for each DEL.

func (s *Server) queueDir() string { return filepath.Join(s.StateDir, api.CNIQueue) }

// unfinishedAge is when a file that a plugin began and did not finish is cleared away.
const unfinishedAge = time.Minute

// drainAtOnce is how many are carried out at the same time.
const drainAtOnce = 32

// drain carries out what is queued. What cannot be done stays for the next time.
func (s *Server) drain(ctx context.Context) {
	entries, err := os.ReadDir(s.queueDir())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.Log.Error("the queue of DEL commands cannot be read", slog.Any("error", err))
		}
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	turns := make(chan struct{}, drainAtOnce)
	for _, e := range entries {
		path := filepath.Join(s.queueDir(), e.Name())
		if strings.HasPrefix(e.Name(), ".new-") {
			if i, err := e.Info(); err == nil && time.Since(i.ModTime()) > unfinishedAge {
				_ = os.Remove(path) // of no use
			}
			continue
		}
		if strings.HasSuffix(e.Name(), ".json") {
			turns <- struct{}{}
			all.Go(func() { s.drainFile(ctx, path); <-turns })
		}
	}
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
	// It may be gone meanwhile: an ADD of the same interface came, and did it first.
	if _, serr := os.Stat(path); serr != nil {
		return
	}
	if err := s.doQueued(ctx, path, p, c); err != nil {
		s.Log.Warn("a queued DEL could not be carried out and stays", slog.String("container", p.ContainerID),
			slog.String("interface", p.IfName), slog.Any("error", err))
	}
}

// drainOne carries out the DEL that is queued for an interface, if there is one. The
// caller holds it.
func (s *Server) drainOne(ctx context.Context, o ipam.Owner) *api.Error {
	path := filepath.Join(s.queueDir(), sumOf(o)+".json")
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	p, c := s.readQueued(path)
	if p == nil {
		return nil
	}
	return s.doQueued(ctx, path, p, c)
}

func (s *Server) doQueued(ctx context.Context, path string, p *api.CNIParams, c *conf) *api.Error {
	if err := s.delHeld(ctx, p, c); err != nil {
		return err
	}
	s.Log.Info("queued DEL carried out", slog.String("container", p.ContainerID), slog.String("interface", p.IfName))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("queued DEL: %v", err)
	}
	return nil
}

// readQueued reads one file; nil where it is of no use, or gone.
func (s *Server) readQueued(path string) (*api.CNIParams, *conf) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	p := &api.CNIParams{}
	var c *conf
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err == nil {
		p.Command = api.CNIDel
		var refused *api.Error
		if c, refused = parseConf(p); refused != nil {
			err = refused
		}
	}
	if err == nil && filepath.Base(path) != sumOf(ownerOf(p))+".json" {
		err = errors.New("it is about another container than its name says")
	}
	if err == nil {
		return p, c
	}
	s.Log.Error("a queued DEL cannot be read and is set aside", slog.String("file", path), slog.Any("error", err))
	if err := os.Rename(path, path+".damaged"); err != nil {
		s.Log.Error("it could not be set aside", slog.Any("error", err))
	}
	return nil, nil
}
