// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

// cniState is how it stands with container runtimes.
type cniState struct {
	Ready         bool     `json:"ready"` // pods can be attached
	Reason        string   `json:"reason,omitempty"`
	Configuration string   `json:"configuration,omitempty"` // the first one, which runtimes take
	Ours          bool     `json:"ours"`                    // it names our plugin
	Plugins       []string `json:"plugins"`                 // files of the plugin
}

// pluginDirs are where container runtimes look for plugins.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

func (a *app) cniStatus() *cobra.Command {
	var o cniOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether pods can be attached, with the exit code",
		Long: `Say whether the daemon can attach pods, which configuration container runtimes take,
and where the plugin is. The exit code is 0 if the daemon can, 1 if it cannot, and 3
if it does not answer. Needs root.`,
		Args: noWords("status takes flags only"),
		RunE: a.run(func(ctx context.Context, d Daemon, _ []string) error {
			state := cniState{Plugins: []string{}}
			err := d.Call(ctx, api.MethodCNI, o.status(), new(json.RawMessage))
			var refused *api.Error
			switch {
			case err == nil:
				state.Ready = true
			case errors.As(err, &refused) && refused.Reason() == api.ReasonUnavailable:
				state.Reason = refused.Message
			default:
				return err
			}
			state.Configuration, state.Ours = firstConfiguration(o.dir)
			for _, dir := range pluginDirs {
				if path := filepath.Join(dir, pluginName); isFile(path) {
					state.Plugins = append(state.Plugins, path)
				}
			}
			return a.printCNI(&o, &state)
		}),
	}
	o.bind(cmd)
	return cmd
}

// errNotReady is the end of a status that is not ready.
var errNotReady = errors.New("pods cannot be attached")

func (a *app) printCNI(o *cniOptions, s *cniState) (err error) {
	if !s.Ready {
		err = errNotReady
	}
	if !a.isTable() {
		return firstError(a.printValue(s), err)
	}
	state, color := "ready", green
	if !s.Ready {
		state, color = "not ready: "+s.Reason, red
	}
	a.printf("%-15s%s\n", "daemon", a.painter().paint(color, clean(state)))
	switch {
	case s.Configuration == "":
		a.printf("%-15snone in %s (llcli cni install)\n", "configuration", clean(o.dir))
	case s.Ours:
		a.printf("%-15s%s\n", "configuration", clean(s.Configuration))
	default:
		a.printf("%-15s%s, which does not name %s\n", "configuration", clean(s.Configuration), pluginName)
	}
	where := strings.Join(s.Plugins, ", ")
	if where == "" {
		where = "neither in " + strings.Join(pluginDirs, " nor in ")
	}
	a.printf("%-15s%s\n", "plugin", where)
	return err
}

// firstConfiguration returns the configuration that runtimes take, and whether it names
// our plugin.
func firstConfiguration(dir string) (path string, ours bool) {
	entries, err := os.ReadDir(dir) // in the order of names
	if err != nil {
		return "", false
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conflist", ".conf", ".json":
		default:
			continue
		}
		path = filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		return path, err == nil && names(text)
	}
	return "", false
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
