// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// daemon is the state of the daemon, as far as it could be determined.
type daemon struct {
	locked  bool // a process holds the lock on the run directory
	pid     int  // process id of the lock's holder; 0: unknown
	err     error
	status  *api.StatusResult // nil: the daemon did not answer
	version *api.VersionResult
}

// running reports whether a daemon is alive, even if it does not answer.
func (d *daemon) running() bool { return d.locked || d.status != nil }

func (x *examiner) socket() string { return filepath.Join(x.Config.RunDir, "control.sock") }

// askDaemon collects data for the other checks. It reports no findings.
func (x *examiner) askDaemon() {
	x.daemon.locked, x.daemon.pid = x.lockHolder(filepath.Join(x.Config.RunDir, "loxilightd.lock"))
	c, err := client.New(client.Options{Socket: x.socket(), Timeout: callTimeout})
	if err != nil {
		x.daemon.err = err
		return
	}
	defer c.Close() // no unsent data is lost
	ctx, cancel := context.WithTimeout(x.ctx, callTimeout)
	defer cancel()
	if x.daemon.status, x.daemon.err = c.Status(ctx); x.daemon.err != nil {
		x.daemon.status = nil
		return
	}
	x.daemon.pid = x.daemon.status.PID
	if v, err := c.Version(ctx); err == nil {
		x.daemon.version = v
	}
	x.desired.ask(x.ctx, c)
}

// lockHolder reports whether a process holds the lock. It does not acquire the lock, because a
// daemon that starts at that moment would then fail.
func (x *examiner) lockHolder(path string) (locked bool, pid int) {
	info, err := os.Stat(path)
	if err != nil {
		return false, 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false, 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		x.hidden("locks", err)
		return false, 0
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE 4242 00:17:33 0 EOF
		if len(f) >= 6 && f[1] == "FLOCK" && f[3] == "WRITE" && f[5] == want {
			pid, _ = strconv.Atoi(f[4]) // 0 (unknown) if it is not a number
			return true, max(pid, 0)
		}
	}
	return false, 0
}

// describeDaemon returns a short description of the daemon's state.
func (x *examiner) describeDaemon() string {
	d := &x.daemon
	text := "does not run"
	switch {
	case d.status != nil:
		text = fmt.Sprintf("runs since %s (process %d)", x.started().Format(time.RFC3339), d.pid)
		if d.version != nil {
			text = "version " + d.version.Version + " " + text
		}
	case errors.Is(d.err, client.ErrPermission):
		text = "cannot be queried by this user"
	case d.locked || errors.Is(d.err, client.ErrNotAnswering):
		text = "does not answer"
	}
	if u := &x.unit; u.known {
		text += fmt.Sprintf("; unit %s is %s (%s)%s", u.label(), u.props["ActiveState"], u.props["SubState"], prefixed(" since ", u.since()))
	}
	return text
}

// started returns the start time of the daemon, if it answers.
func (x *examiner) started() time.Time {
	return time.Now().Add(-time.Duration(x.daemon.status.Uptime)).UTC().Truncate(time.Second)
}

// checkStarted reports a configuration that is newer than the daemon.
func (x *examiner) checkStarted() {
	info, err := os.Stat(x.ConfigFile)
	if err != nil || !info.ModTime().After(x.started().Add(2*time.Second)) {
		return
	}
	x.find("note", "config.younger", x.ConfigFile, words{
		what: "was changed " + info.ModTime().UTC().Format(time.RFC3339) + ", after the daemon had started",
		why:  "all keys but log.level, firewall.exempt and policy.failsafe are read at the start only",
		do:   x.restart() + ", or, if only these were changed, " + x.reloadUnit(),
	}, nil)
}

func (x *examiner) checkDaemon() {
	d := &x.daemon
	switch {
	case d.status != nil:
		x.checkRunning()
	case errors.Is(d.err, client.ErrPermission):
		x.hidden("the daemon", d.err)
	case d.locked || errors.Is(d.err, client.ErrNotAnswering):
		x.find("error", "daemon.hung", x.process(), words{
			what: "runs, but does not answer: " + d.err.Error(),
			why:  "packets are forwarded as configured; nothing can be changed, and external changes are not repaired",
			do:   "see its log (" + x.journal() + "); then " + x.restart() + ": no packet is lost",
		}, nil)
	default:
		x.checkStopped()
	}
}

func (x *examiner) process() string {
	if x.daemon.pid > 0 {
		return fmt.Sprintf("loxilightd (process %d)", x.daemon.pid)
	}
	return "loxilightd"
}

// checkStopped reports a daemon that is not running.
func (x *examiner) checkStopped() {
	if x.unit.failed() {
		return // reported by checkUnit
	}
	severity, why := "warning", "it forwards nothing, and it cannot be configured"
	if len(x.attached()) > 0 {
		why = "its programs continue as configured: idle connections do not end, backends are not checked, new devices are not attached"
	}
	if x.unit.known && !x.unit.wanted() && len(x.attached()) == 0 {
		severity = "note"
	}
	x.find(severity, "daemon.stopped", "loxilightd", words{what: "does not run", why: why, do: x.start()}, nil)
	x.checkSockets()
}

// checkSockets reports sockets without a listening process.
func (x *examiner) checkSockets() {
	for _, name := range []string{"control.sock", "events.sock", "control.sock.new", "events.sock.new"} {
		path := filepath.Join(x.Config.RunDir, name)
		if !deadSocket(path) {
			continue
		}
		x.find("note", "sockets.stale", path, words{
			what: "is a socket of a daemon that no longer runs",
			why:  "clients cannot connect to it; the next daemon replaces it",
			do:   "nothing, or rm " + path,
		}, func() (string, error) {
			if !deadSocket(path) {
				return "nothing: a process is listening now", nil
			}
			return "rm " + path, os.Remove(path)
		})
	}
}

// deadSocket reports whether path is a socket without a listening process.
func deadSocket(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := net.DialTimeout("unix", path, callTimeout)
	if err == nil {
		_ = c.Close() // the socket has a listener
		return false
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// checkRunning reports the problems of a daemon that answers.
func (x *examiner) checkRunning() {
	x.checkVersion()
	x.checkStarted()
	s := x.daemon.status
	if s.Instance != x.Config.Instance {
		x.find("error", "daemon.instance", x.socket(), words{
			what: fmt.Sprintf("is answered by the instance %q, but the configuration names %q", s.Instance, x.Config.Instance),
			why:  "two instances use one directory, or the daemon was not restarted since the configuration was changed",
			do:   "restart the daemon, or give each instance a runDir of its own",
		}, nil)
	}
	objects, others := causes(s.NotReady)
	for _, o := range objects {
		severity := "warning"
		if o.State == api.StateError {
			severity = "error"
		}
		x.find(severity, "objects.not_ready", o.Object, words{
			what: "is " + o.State + prefixed(": ", o.Message) + prefixed("; for the same reason also ", strings.Join(others[o.Object], ", ")),
			why:  "the data plane has not applied it",
			do:   "see llcli describe " + strings.ToLower(strings.Replace(o.Object, "/", " ", 1)),
		}, nil)
	}
	for _, message := range s.Health.Messages {
		if !reportedElsewhere(message) {
			x.find("warning", "daemon.degraded", "loxilightd", words{
				what: "reports: " + message, why: "the daemon reports a problem", do: "see llcli status",
			}, nil)
		}
	}
	if s.Repairs > 0 {
		x.find("note", "daemon.repairs", "loxilightd", words{
			what: fmt.Sprintf("has repaired %d external changes", s.Repairs),
			why:  "another program on this machine changes objects of loxilight",
			do:   "the log of the daemon names the changed objects (" + x.journal() + ")",
		}, nil)
	}
	x.checkTables()
}

// causes returns the objects, except those whose message ends with another object's message,
// because they have the same cause as that object. It returns the excepted objects in others,
// grouped by the name of that object.
func causes(all []api.NotReady) (objects []api.NotReady, others map[string][]string) {
	others = map[string][]string{}
	for i, o := range all {
		cause := i
		for j, other := range all {
			if other.Message == "" || other.State != o.State || !strings.HasSuffix(o.Message, other.Message) {
				continue
			}
			if len(other.Message) < len(all[cause].Message) || other.Message == all[cause].Message && j < cause {
				cause = j
			}
		}
		if cause == i {
			objects = append(objects, o)
		} else {
			others[all[cause].Object] = append(others[all[cause].Object], o.Object)
		}
	}
	return objects, others
}

// reportedElsewhere reports whether a different check gives a better description of the fault in a
// message.
func reportedElsewhere(message string) bool {
	return strings.HasSuffix(message, "not Ready") || strings.HasPrefix(message, "table ") || strings.HasPrefix(message, "net.ipv")
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// checkVersion compares the running version with the installed version.
func (x *examiner) checkVersion() {
	v := x.daemon.version
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", x.daemon.pid))
	replaced := err == nil && strings.HasSuffix(exe, " (deleted)")
	if v == nil || v.Version == x.Version && !replaced {
		return
	}
	what := fmt.Sprintf("is version %s, installed is %s", v.Version, x.Version)
	if v.Version == x.Version {
		what = "runs a program that was replaced since it was started"
	}
	x.find("warning", "daemon.version", x.process(), words{
		what: what,
		why:  "fixes and features of the new version are not in use",
		do:   x.restart() + ": no packet is lost",
	}, nil)
}

// A table whose usage, in percent, reaches one of these limits is reported as a warning or as an
// error.
const (
	nearlyFull = 80
	full       = 95
)

var tableGrows = map[string]string{
	"connections":   "new connections displace half-open ones, and fail if there are none",
	"affinity":      "the oldest clients are forgotten: they may get another backend",
	"natMappings":   "connections that need a mapping of their own are refused: no_port",
	"natBlocks":     "inner addresses that need another port block are refused: no_port",
	"nextHops":      "packets to further neighbours take the slow path",
	"nameAddresses": "connections to further addresses of names in Policies are denied",
}

func (x *examiner) checkTables() {
	for name, u := range x.daemon.status.Capacity {
		if isPool(name) || u.Size == 0 || u.Used*100 < u.Size*nearlyFull {
			continue
		}
		severity := "warning"
		if u.Used*100 >= u.Size*full {
			severity = "error"
		}
		family, _, _ := strings.Cut(name, " ") // connections IPv4
		why, ok := tableGrows[family]
		if !ok {
			why = "changes that need more of it are refused"
		}
		do := "delete what is not needed: its size is fixed"
		if setting := api.SettingOf(name); setting != "" {
			do = fmt.Sprintf("raise %s in %s and restart the daemon: entries are kept", setting, x.ConfigFile)
		}
		x.find(severity, "tables.full", "table "+name, words{
			what: fmt.Sprintf("is %d%% full: %d of %d", u.Used*100/u.Size, u.Used, u.Size),
			why:  "when it is full, " + why,
			do:   do,
		}, nil)
	}
}
