// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// upkeepInterval is how often a data plane wants to be looked after, and networkInterval how
// often the network does, which repairs what the kernel does not notify of.
const (
	upkeepInterval  = time.Second
	networkInterval = 500 * time.Millisecond
)

// chore is one thing that is done again and again.
type chore struct {
	do    func(context.Context) error
	every time.Duration
}

// upkeep has the data plane look after itself, and remembers how that went.
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

// repeat does one chore until ctx ends.
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

// note says once that something is wrong, and once that it is not any more.
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
