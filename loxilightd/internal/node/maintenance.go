// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// maintenanceInterval is the interval for maintenance of the data plane. networkInterval is the
// interval for maintenance of the network, which repairs changes for which there is no kernel
// notification.
const (
	maintenanceInterval = time.Second
	networkInterval     = 500 * time.Millisecond
)

// periodicTask is a function that is called periodically.
type periodicTask struct {
	do    func(context.Context) error
	every time.Duration
}

// maintenance runs the periodic tasks of the data plane, and keeps their results.
type maintenance struct {
	tasks []periodicTask
	log   *slog.Logger

	mu   sync.Mutex
	errs []error // results of the last calls, by task index
}

func (m *maintenance) run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range m.tasks {
		all.Go(func() { m.repeat(ctx, i) })
	}
	all.Wait()
}

// repeat runs one task periodically until ctx ends.
func (m *maintenance) repeat(ctx context.Context, i int) {
	ticker := time.NewTicker(m.tasks[i].every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		err := m.tasks[i].do(ctx)
		if ctx.Err() == nil {
			m.note(i, err)
		}
	}
}

// note records the result of a task. It logs only once that maintenance fails, and only once that
// it works again.
func (m *maintenance) note(i int, of error) {
	m.mu.Lock()
	before := errors.Join(m.errs...)
	m.errs[i] = of
	err := errors.Join(m.errs...)
	m.mu.Unlock()
	switch {
	case err != nil && before == nil:
		m.log.Warn("maintenance of the data plane fails", slog.Any("error", err))
	case err == nil && before != nil:
		m.log.Info("maintenance of the data plane works again")
	}
}

func (m *maintenance) lastErr() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.errs...)
}
