// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifySystemd tells the service manager how the daemon is; where there is none
// it does nothing.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("service manager not told", slog.Any("error", err))
	}
}

// notifyReloading begins a reload; READY=1 ends it.
func notifyReloading(log *slog.Logger) {
	notifySystemd(log, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
}

// watchdog tells the service manager that the daemon lives, for as long as alive
// returns: who hangs in there is restarted.
func watchdog(ctx context.Context, log *slog.Logger, alive func()) {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog not understood", slog.Any("error", err))
		return
	}
	if timeout == 0 {
		return
	}
	ticker := time.NewTicker(timeout / 3)
	defer ticker.Stop()
	for {
		alive()
		notifySystemd(log, daemon.SdNotifyWatchdog)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
