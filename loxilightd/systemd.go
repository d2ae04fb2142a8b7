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

// notifySystemd reports the daemon's state to the service manager; it does nothing if there is
// none.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("service manager not notified", slog.Any("error", err))
	}
}

// notifyReloading reports the beginning of a reload; READY=1 ends it.
func notifyReloading(log *slog.Logger) {
	notifySystemd(log, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
}

// switchUnitKey is the environment variable that names the unit that creates the switch's network
// namespace, for use if the sandbox does not allow the daemon to mount.
const switchUnitKey = "LOXILIGHT_SWITCH_UNIT"

// switchMaker returns a function that creates the namespace; nil if no unit is configured.
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

// watchdog reports to the service manager that the daemon is alive, as long as calls to alive
// return. A hung daemon is restarted.
func watchdog(ctx context.Context, log *slog.Logger, alive func()) {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("invalid watchdog settings from the service manager", slog.Any("error", err))
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
