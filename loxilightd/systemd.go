// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
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

// switchUnitKey is the variable by which the unit says which other unit makes the
// network namespace of the switch, where the sandbox keeps the daemon from mounting.
const switchUnitKey = "LOXILIGHT_SWITCH_UNIT"

// switchMaker returns what has the namespace made; nil where nobody is named.
func switchMaker() func() error {
	unit := os.Getenv(switchUnitKey)
	if unit == "" {
		return nil
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "systemctl", "start", unit).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl start %s: %w: %s (see journalctl -u %s)", unit, err, bytes.TrimSpace(out), unit)
		}
		return nil
	}
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
