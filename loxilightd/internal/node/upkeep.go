// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// upkeepInterval is how often a data plane wants to be looked after.
const upkeepInterval = time.Second

// upkeep has the data plane look after itself, and remembers how that went.
type upkeep struct {
	maintain []func(context.Context) error
	log      *slog.Logger

	mu  sync.Mutex
	err error // of the last time
}

func (u *upkeep) run(ctx context.Context) {
	ticker := time.NewTicker(upkeepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var err error
		for _, maintain := range u.maintain {
			err = errors.Join(err, maintain(ctx))
		}
		if ctx.Err() == nil {
			u.note(err)
		}
	}
}

// note says once that something is wrong, and once that it is not any more.
func (u *upkeep) note(err error) {
	u.mu.Lock()
	before := u.err
	u.err = err
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
