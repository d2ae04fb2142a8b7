// SPDX-License-Identifier: Apache-2.0

package local

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// The plugin's defaults for the daemon's socket and state directory.
const (
	usualSocket   = "/run/loxilight/control.sock"
	usualStateDir = "/var/lib/loxilight"
)

// cniTarget is the daemon that a configuration leads to.
type cniTarget struct {
	socket   string
	stateDir string // empty: not known
	why      string // why it is not known
}

// daemonTarget asks the daemon for the socket that the plugin must use, and for the directory of
// requests that are queued while the daemon is down.
func daemonTarget(ctx context.Context, a *command.App, d command.Daemon) cniTarget {
	var status api.StatusResult
	err := d.Call(ctx, api.MethodStatus, nil, &status)
	return targetOf(a, &status, err)
}

// targetOf derives the target from a status, or from the error of the status call.
func targetOf(a *command.App, status *api.StatusResult, err error) cniTarget {
	t := cniTarget{socket: strings.TrimPrefix(a.ControlURL(), "ipc://")}
	if abs, err := filepath.Abs(t.socket); err == nil && !strings.Contains(t.socket, "://") {
		t.socket = abs // the plugin runs in a different directory
	}
	switch t.stateDir = status.StateDir; {
	case err != nil:
		t.why = err.Error()
	case t.stateDir == "":
		t.why = "it is older than this llcli"
	}
	return t
}

// complete fills in usual values that the daemon did not report, and prints a note about them.
func (t *cniTarget) complete(a *command.App, path string) {
	if t.stateDir != "" || t.socket == usualSocket {
		return
	}
	instance, ok := strings.CutPrefix(filepath.Base(filepath.Dir(t.socket)), "loxilight-")
	if !ok {
		a.Note("the daemon does not report its state directory (%s): set stateDir in %s, or a DEL that is queued while the daemon is down is never carried out", t.why, path)
		return
	}
	t.stateDir = usualStateDir + "-" + instance
	a.Note("the daemon does not report its state directory (%s); using %s, the default of its instance; if its configuration has another stateDir, put that into %s", t.why, t.stateDir, path)
}

// conflist is the configuration that is installed: a file of the user's, or the usual one.
func conflist(a *command.App, o *cniOptions, t *cniTarget) ([]byte, error) {
	if o.file != "" {
		text, err := os.ReadFile(o.file)
		if err == nil && !names(text) {
			err = fmt.Errorf("%s: not a JSON list of plugins that contains type %s", o.file, pluginName)
		}
		return text, err
	}
	keys := []string{`"network": ` + quote(o.network)}
	if t.socket != usualSocket {
		keys = append(keys, `"socket": `+quote(t.socket))
	}
	if t.stateDir != "" && t.stateDir != usualStateDir {
		keys = append(keys, `"stateDir": `+quote(t.stateDir))
	}
	return fmt.Appendf(nil, usualConflist, strings.Join(keys, ",\n            ")), nil
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	command.Must(err) // strings can always be encoded as JSON
	return string(quoted)
}

const usualConflist = `{
    "cniVersion": "1.0.0",
    "cniVersions": ["1.0.0", "1.1.0"],
    "name": "loxilight",
    "plugins": [
        {
            "type": "loxilight-cni",
            %s,
            "capabilities": {"portMappings": true, "bandwidth": true, "mac": true, "ips": true}
        }
    ]
}
`

// ourPlugin is the part of a configuration for our plugin.
type ourPlugin struct {
	Socket, StateDir, Network string
	list                      string // its name
	whole                     json.RawMessage
}

// readPlugin returns our plugin's entry in a list of plugins, and false if it is missing.
func readPlugin(text []byte) (p ourPlugin, ok bool) {
	var list struct {
		Name    string
		Plugins []json.RawMessage
	}
	if json.Unmarshal(text, &list) != nil {
		return p, false
	}
	for _, raw := range list.Plugins {
		var kind struct{ Type string }
		if json.Unmarshal(raw, &kind) != nil || kind.Type != pluginName {
			continue
		}
		if json.Unmarshal(raw, &p) != nil {
			continue
		}
		p.list, p.whole = list.Name, raw
		p.Socket, p.StateDir, p.Network = cmp.Or(p.Socket, usualSocket), cmp.Or(p.StateDir, usualStateDir), cmp.Or(p.Network, "default")
		return p, true
	}
	return p, false
}

// names reports whether a configuration is a list of plugins that contains ours.
func names(text []byte) bool {
	_, ok := readPlugin(text)
	return ok
}

// strays returns how a configuration differs from the daemon's, or an empty string if it leads to
// this daemon.
func (p *ourPlugin) strays(t *cniTarget) string {
	switch {
	case p.Socket != t.socket && !sameFile(p.Socket, t.socket):
		return fmt.Sprintf("socket %s differs from the daemon's socket %s: another daemon attaches the pods", p.Socket, t.socket)
	case t.stateDir != "" && p.StateDir != t.stateDir && !sameFile(p.StateDir, t.stateDir):
		return fmt.Sprintf("stateDir %s differs from the daemon's stateDir %s: a DEL that is queued while the daemon is down is never carried out", p.StateDir, t.stateDir)
	}
	return ""
}

// sameFile reports whether two paths lead to the same file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
