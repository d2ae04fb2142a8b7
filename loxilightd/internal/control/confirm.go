// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// clockCheck is how often the clocks are read while a change waits for confirmation, because the
// wall clock may jump.
const clockCheck = time.Second

func pendingConfirm(p *state.Pending, left time.Duration) *api.PendingConfirm {
	return &api.PendingConfirm{
		Revision: p.Revision, Joined: p.Joined, Until: timeOf(p.Until), Left: api.Duration(left.Round(time.Millisecond)), Author: authorOf(p.Author),
	}
}

func (s *Server) confirm(_ context.Context, c Caller, p *api.ConfirmParams) (any, *api.Error) {
	waits, _ := s.Store.Pending()
	if err := s.Store.Confirm(p.Revision); err != nil {
		return nil, refusalError(err)
	}
	if waits != nil {
		s.Log.Info("a change was confirmed", slog.Uint64("revision", p.Revision), slog.Int("uid", c.UID))
		s.confirmationChanged(waits, state.Confirmed, "by "+state.Author{UID: c.UID, User: userName(c.UID)}.String())
		s.retryFiles()
	}
	return &api.ConfirmResult{Revision: p.Revision}, nil
}

// noteConfirmation logs and publishes that a change has rolled back the pending change, or is
// itself waiting for confirmation.
func (s *Server) noteConfirmation(r *request, result *state.Result) {
	if r.change.DryRun {
		return
	}
	if result.Reverted != nil {
		s.Log.Info("an unconfirmed change was rolled back", slog.Uint64("revision", result.Reverted.Revision), slog.Uint64("by_revision", result.Revision))
		s.confirmationChanged(result.Reverted, state.RolledBack, "by hand")
		s.retryFiles()
	}
	if p := result.Pending; p != nil {
		s.Log.Warn("a change will be rolled back unless it is confirmed", slog.Uint64("revision", p.Revision), slog.Time("until", p.Until), slog.String("user", p.Author.String()))
		s.confirmationChanged(p, state.Waiting, "until "+timeOf(p.Until))
	}
}

func (s *Server) confirmationChanged(p *state.Pending, c state.Confirmation, message string) {
	for _, revision := range p.Revisions() {
		s.publish(api.TopicStatus, &api.StatusEvent{State: c.String(), Message: message, Revision: revision})
	}
	select {
	case s.expiry <- struct{}{}:
	default:
	}
}

// retryFiles reads the object files again if they were rejected: a change that was waiting for
// confirmation may have been the reason.
func (s *Server) retryFiles() {
	if s.filesFailed() == nil {
		return
	}
	if _, err := s.Reload(); err != nil {
		s.Log.Warn("object files still not applied", slog.Any("error", err))
	}
}

func (s *Server) filesFailed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fileFail
}

// watchConfirm rolls back changes that are not confirmed in time, until ctx ends.
func (s *Server) watchConfirm(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.expiry:
		case <-timer.C:
		}
		s.Expire()
		if p, left := s.Store.Pending(); p != nil {
			timer.Reset(min(max(left, clockCheck/10), clockCheck))
		}
	}
}

// Expire rolls back the change that waits for confirmation if its deadline has passed.
func (s *Server) Expire() {
	p, result, err := s.Store.Expire()
	if p == nil {
		return
	}
	s.mu.Lock()
	failedBefore := s.expireFail != nil
	s.expireFail = err
	s.mu.Unlock()
	if err != nil {
		if !failedBefore {
			s.Log.Error("an unconfirmed change could not be rolled back; it is retried", slog.Uint64("revision", p.Revision), slog.Any("error", err))
		}
		return
	}
	s.Log.Warn("a change was not confirmed in time and was rolled back", slog.Uint64("revision", p.Revision),
		slog.Uint64("by_revision", result.Revision), slog.Time("until", p.Until), slog.String("user", p.Author.String()))
	for _, k := range result.Left {
		s.Log.Error("an object could not be rolled back with the change", slog.String("object", k.String()))
	}
	s.confirmationChanged(p, state.RolledBack, "not confirmed in time")
	s.retryFiles()
}
