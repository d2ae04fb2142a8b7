// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// upkeepInterval is the interval of the data plane's upkeep, networkInterval the network's, which
// repairs changes without kernel notification.
const (
	upkeepInterval  = time.Second
	networkInterval = 500 * time.Millisecond
)

// chore is a periodic task.
type chore struct {
	do    func(context.Context) error
	every time.Duration
}

// upkeep runs the periodic tasks of the data plane, and keeps their results.
type upkeep struct {
	chores []chore
	log    *slog.Logger

	mu   sync.Mutex
	errs map[int]error // of the last time, by the index of the chore
	err  error         // all of them
}

func (u *upkeep) run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range u.chores {
		all.Go(func() { u.repeat(ctx, i) })
	}
	all.Wait()
}

// repeat runs one chore periodically until ctx ends.
func (u *upkeep) repeat(ctx context.Context, i int) {
	ticker := time.NewTicker(u.chores[i].every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		err := u.chores[i].do(ctx)
		if ctx.Err() == nil {
			u.note(i, err)
		}
	}
}

// note logs an error once, and its end once.
func (u *upkeep) note(i int, of error) {
	u.mu.Lock()
	if u.errs == nil {
		u.errs = map[int]error{}
	}
	u.errs[i] = of
	before := u.err
	u.err = nil
	for i := range u.chores {
		u.err = errors.Join(u.err, u.errs[i])
	}
	err := u.err
	u.mu.Unlock()
	switch {
	case err != nil && before == nil:
		u.log.Warn("upkeep of the data plane fails", slog.Any("error", err))
	case err == nil && before != nil:
		u.log.Info("upkeep of the data plane works again")
	}
}

func (u *upkeep) trouble() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}
