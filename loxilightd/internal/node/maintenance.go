// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/loxilight/loxilight/internal/tick"
)

// maintenanceInterval is the interval for maintenance of the data plane. networkInterval is the
// interval for maintenance of the network, which repairs changes for which there is no kernel
// notification. While there are no objects and the data plane is idle, both are idleInterval.
const (
	maintenanceInterval = time.Second
	networkInterval     = 500 * time.Millisecond
	idleInterval        = 5 * time.Second
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
	// isIdle reports whether there are no objects and the data plane is idle. changed is signalled, by
	// task index, when that may have changed.
	isIdle  func() bool
	changed []chan struct{}

	mu   sync.Mutex
	errs []error // results of the last calls, by task index
}

func newMaintenance(tasks []periodicTask, isIdle func() bool, log *slog.Logger) *maintenance {
	m := &maintenance{tasks: tasks, log: log, isIdle: isIdle, errs: make([]error, len(tasks))}
	for range tasks {
		m.changed = append(m.changed, make(chan struct{}, 1))
	}
	return m
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
	for {
		every := m.tasks[i].every
		if m.isIdle() {
			every = idleInterval
		}
		select {
		case <-tick.After(every):
		case <-m.changed[i]:
			continue
		case <-ctx.Done():
			return
		}
		err := m.tasks[i].do(ctx)
		if ctx.Err() == nil {
			m.note(i, err)
		}
	}
}

// objectsChanged makes the tasks notice that there may be objects now.
func (m *maintenance) objectsChanged() {
	for _, c := range m.changed {
		signal(c)
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
