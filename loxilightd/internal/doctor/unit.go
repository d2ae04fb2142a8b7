// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// unit is the state of the daemon's systemd unit.
type unit struct {
	name  string
	known bool // the unit exists and runs this instance
	props map[string]string
}

// label is the unit's name for messages.
func (u *unit) label() string { return strings.TrimSuffix(u.name, ".service") }

// start returns how the daemon is started.
func (x *examiner) start() string {
	if x.unit.known {
		return "systemctl start " + x.unit.label()
	}
	return "start loxilightd --config " + x.ConfigFile
}

func (x *examiner) restart() string {
	if x.unit.known {
		return "systemctl restart " + x.unit.label()
	}
	return "restart the daemon"
}

func (x *examiner) reloadUnit() string {
	if x.unit.known {
		return "systemctl reload " + x.unit.label()
	}
	return "send SIGHUP to the daemon"
}

func (x *examiner) journal() string {
	if x.unit.known {
		return "journalctl -u " + x.unit.label()
	}
	return "its standard error"
}

func (u *unit) failed() bool { return u.known && u.props["ActiveState"] == "failed" }

// wanted reports whether the unit should run.
func (u *unit) wanted() bool {
	return u.props["UnitFileState"] == "enabled" || u.props["ActiveState"] == "active" || u.props["ActiveState"] == "activating"
}

// since returns the time since which the unit has been in its state, or an empty string if it is
// unknown.
func (u *unit) since() string {
	return u.props["StateChangeTimestamp"]
}

var unitProperties = []string{
	"LoadState", "ActiveState", "SubState", "Result", "ExecMainCode", "ExecMainStatus", "NRestarts", "UnitFileState",
	"StateChangeTimestamp", "ExecStart", "MemoryMax", "MemoryCurrent", "NeedDaemonReload", "WatchdogUSec", "ControlGroup",
}

// askUnit queries systemd, if it is present.
func (x *examiner) askUnit() {
	x.unit.name = "loxilightd.service"
	if x.Config.Instance != config.DefaultInstance {
		x.unit.name = "loxilightd@" + x.Config.Instance + ".service"
	}
	if _, err := os.Stat(x.path("/run/systemd/system")); err != nil {
		return // the machine does not run systemd
	}
	out, err := x.command("systemctl", "show", x.unit.name, "--property="+strings.Join(unitProperties, ","))
	if err != nil {
		x.hidden("unit "+x.unit.name, err)
		return
	}
	x.unit.props = properties(out)
	// A unit with that name may run a configuration other than the one being examined.
	x.unit.known = x.unit.props["LoadState"] == "loaded" &&
		(x.ConfigFile == config.DefaultFile || strings.Contains(x.unit.props["ExecStart"], x.ConfigFile))
}

// properties parses lines in the form KEY=VALUE.
func properties(text string) map[string]string {
	p := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			p[key] = value
		}
	}
	return p
}

// exitMeaning explains the daemon's exit codes.
var exitMeaning = map[string]string{
	"1":  "it could not start, or could not continue",
	"2":  "wrong usage",
	"70": "this kernel refuses the programs, or this version cannot read the pinned maps: starting again does not help",
	"78": "wrong configuration: starting again does not help",
}

func (x *examiner) checkUnit() {
	u := &x.unit
	if !u.known {
		return
	}
	journal := "journalctl -u " + u.label() + " -n 50"
	if u.failed() {
		status := u.props["ExecMainStatus"]
		what := fmt.Sprintf("has failed (%s, exit code %s)", u.props["Result"], status)
		if meaning, ok := exitMeaning[status]; ok {
			what += ": " + meaning
		}
		x.find("error", "unit.failed", u.name, words{
			what: what + prefixed(", since ", u.since()),
			why:  "attached programs continue as configured; nothing can be changed, and new devices are not attached",
			do:   "the last lines of " + journal + " contain the cause; then systemctl restart " + u.label(),
		}, nil)
	}
	if n := u.props["NRestarts"]; n != "" && n != "0" {
		x.find("warning", "unit.restarts", u.name, words{
			what: "was restarted " + n + " times by systemd, because the daemon had exited",
			why:  "no packets are lost, but the daemon has a fault",
			do:   "see the cause: " + journal,
		}, nil)
	}
	if u.props["NeedDaemonReload"] == "yes" {
		x.find("warning", "unit.reload", u.name, words{
			what: "was changed on disk since systemd read it",
			why:  "the unit runs with its previous content", do: "systemctl daemon-reload && systemctl restart " + u.label(),
		}, nil)
	}
	if state := u.props["UnitFileState"]; state == "disabled" && u.props["ActiveState"] == "active" {
		x.find("note", "unit.disabled", u.name, words{
			what: "runs, but is not started at boot",
			why:  "after a reboot nothing is forwarded", do: "systemctl enable " + u.label(),
		}, nil)
	}
	x.checkWatchdog(journal)
}

func (x *examiner) checkWatchdog(journal string) {
	u := &x.unit
	switch d, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(u.props["WatchdogUSec"], "min", "m"), " ", "")); {
	case u.props["Result"] == "watchdog":
		x.find("error", "unit.watchdog", u.name, words{
			what: "was killed by the watchdog: the daemon hung",
			why:  "while it hung, nothing could be changed", do: "keep the output of " + journal + ", and report it",
		}, nil)
	case err == nil && d == 0 && u.props["ActiveState"] == "active":
		x.find("note", "unit.watchdog", u.name, words{
			what: "has no watchdog", why: "a daemon that hangs is not restarted",
			do: "set WatchdogSec= in the unit, as the packaged unit does",
		}, nil)
	}
}
