// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// CNIState is the state of the node for container runtimes.
type CNIState struct {
	Ready         bool             `json:"ready"` // pods can be attached, and runtimes find plugin and configuration
	Reasons       []string         `json:"reasons,omitempty"`
	Daemon        *cniDaemon       `json:"daemon,omitempty"`        // nil: it does not answer
	Configuration *cniConf         `json:"configuration,omitempty"` // the first one, which runtimes take
	Plugins       []cniPluginState `json:"plugins,omitempty"`
}

type cniDaemon struct {
	Ready    bool   `json:"ready"` // it can attach pods
	Version  string `json:"version"`
	Instance string `json:"instance"`
	Socket   string `json:"socket"`
	StateDir string `json:"stateDir,omitempty"`
}

type cniConf struct {
	Path     string `json:"path"`
	Ours     bool   `json:"ours"`              // it names our plugin, or leads to a configuration that does
	Adapted  bool   `json:"adapted,omitempty"` // it differs from the output of llcli cni install
	Network  string `json:"network,omitempty"`
	Socket   string `json:"socket,omitempty"`
	StateDir string `json:"stateDir,omitempty"`
}

type cniPluginState struct {
	Path    string `json:"path"`
	Version string `json:"version,omitempty"`
}

// pluginDirs are where container runtimes look for plugins.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// cniStatus examines the installation.
type cniStatus struct {
	*command.App
	cniOptions
	alone   bool // the daemon's part only
	named   bool // the network was given
	plugins []string

	CNIState
	conf   *ourPlugin // that runtimes take; nil: none
	text   []byte     // of its file
	target cniTarget
}

func cniStatusCommand(a *command.App) *cobra.Command {
	s := &cniStatus{App: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Report whether pods can be attached, also by the exit code",
		Long: `Report whether the daemon can attach pods, whether the configuration that container runtimes
use leads to this daemon, and whether the plugin is in a directory where runtimes look for
it; if not, report what to do. The exit code is 0 if pods can be attached, 1 if they cannot,
and 3 if the daemon does not answer. Needs root.

The daemon is queried for the PodNetwork in the configuration that runtimes use, or for
--network. With --daemon, only the daemon is checked: for probes.`,
		Args: command.NoWords("status takes flags only"),
	}
	cmd.RunE = a.RunLocal(func(ctx context.Context, _ []string) error {
		s.named = cmd.Flags().Changed("network")
		return s.run(ctx)
	})
	s.bind(a, cmd)
	cmd.Flags().BoolVar(&s.alone, "daemon", false, "only report whether the daemon can attach pods")
	cmd.Flags().StringSliceVar(&s.plugins, "plugin-dir", pluginDirs, "the `DIRECTORY` that the runtime has plugins in; may be repeated")
	command.Must(cmd.MarkFlagDirname("plugin-dir"))
	return cmd
}

// errNotReady ends a status that is not ready.
var errNotReady = errors.New("pods cannot be attached")

func (s *cniStatus) run(ctx context.Context) error {
	if !s.alone {
		s.findConfiguration()
	}
	d, err := s.Connect(ctx)
	if err == nil {
		err = errors.Join(s.ask(ctx, d), d.Close())
		if err != nil {
			return err
		}
	} else if s.alone || !command.IsUnreachable(err) {
		return err
	} else {
		s.missing("the daemon does not answer: %v", err)
	}
	if !s.alone {
		s.findPlugins(ctx)
	}
	s.Ready = len(s.Reasons) == 0
	if !s.Ready && err == nil {
		err = errNotReady
	}
	if !s.IsTable() {
		return cmp.Or(s.PrintValue(s.CNIState), err)
	}
	s.print()
	return err
}

func (s *cniStatus) missing(format string, args ...any) {
	s.Reasons = append(s.Reasons, fmt.Sprintf(format, args...))
}

// findConfiguration examines the configuration that runtimes use, which is the first by name.
func (s *cniStatus) findConfiguration() {
	entries, _ := os.ReadDir(s.dir) // sorted by name; a missing directory is empty
	var first []byte
	later := ""
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conflist", ".conf", ".json":
		default:
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		text, err := os.ReadFile(path)
		if s.Configuration == nil {
			s.Configuration, first = &cniConf{Path: path}, text
		}
		if p, ok := readPlugin(text); err == nil && ok {
			later, s.conf, s.text = path, &p, text
			break
		}
	}
	switch c := s.Configuration; {
	case c == nil:
		s.missing("no configuration in %s: llcli cni install", s.dir)
		return
	case s.conf == nil && c.Path == s.path():
		s.missing("%s is not a list of plugins that contains type %s: llcli cni install --force", c.Path, pluginName)
		return
	case s.conf == nil:
		s.missing("%s, which runtimes use, does not name %s: llcli cni install, and rename or remove the files that sort before it", c.Path, pluginName)
		return
	case later != c.Path && !bytes.Contains(first, []byte(filepath.Base(later))) && !bytes.Contains(first, []byte(pluginName)):
		s.missing("%s sorts before %s, and runtimes use the first configuration: rename it, or remove it", c.Path, later)
		return
	}
	s.Configuration.Ours = true
	s.Configuration.Network, s.Configuration.Socket, s.Configuration.StateDir = s.conf.Network, s.conf.Socket, s.conf.StateDir
}

// ask asks the daemon whether it can attach pods.
func (s *cniStatus) ask(ctx context.Context, d command.Daemon) error {
	var version api.VersionResult
	if err := d.Call(ctx, api.MethodVersion, nil, &version); err != nil {
		return err
	}
	var status api.StatusResult
	if err := d.Call(ctx, api.MethodStatus, nil, &status); err != nil {
		return err
	}
	s.target = targetOf(s.App, &status, nil)
	s.Daemon = &cniDaemon{Version: version.Version, Instance: status.Instance, Socket: s.target.socket, StateDir: s.target.stateDir}
	params, about := s.question()
	err := d.Call(ctx, api.MethodCNI, params, new(json.RawMessage))
	var refused *api.Error
	switch {
	case err == nil:
		s.Daemon.Ready = true
	case !errors.As(err, &refused):
		return err
	case refused.Reason() == api.ReasonUnavailable:
		s.missing("the daemon cannot yet: %s", refused.Message)
	case about != "" && (refused.Reason() == api.ReasonInvalid || refused.Reason() == api.ReasonUnsupported):
		s.missing("%s: %s", about, refused.Message)
	default:
		return err
	}
	if c := s.Configuration; c != nil && c.Ours {
		usual, err := conflist(s.App, &cniOptions{network: c.Network}, &s.target)
		c.Adapted = err == nil && !saysTheSame(usual, s.text)
		if strays := s.conf.strays(&s.target); strays != "" {
			s.missing("%s: %s; llcli cni install --force", c.Path, strays)
		}
	}
	return nil
}

// saysTheSame reports whether a and b are equal as JSON, regardless of their layout: llcli cni keep
// uses the text of a ConfigMap unchanged.
func saysTheSame(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// question returns the request to the daemon, and a description of the configuration that it
// concerns.
func (s *cniStatus) question() (p api.CNIParams, about string) {
	if s.named || s.conf == nil {
		return s.status(), ""
	}
	config := map[string]json.RawMessage{}
	command.Must(json.Unmarshal(s.conf.whole, &config)) // it was read before
	config["cniVersion"], config["name"] = json.RawMessage(`"1.1.0"`), json.RawMessage(quote(s.conf.list))
	raw, err := json.Marshal(config)
	command.Must(err)
	return api.CNIParams{Command: api.CNIStatus, Config: raw}, s.Configuration.Path
}

// pluginVersion matches the version that the plugin prints when it is run without a command.
var pluginVersion = regexp.MustCompile(`(?m)^` + pluginName + ` ([^\s:]+)`)

// findPlugins looks for the plugin, and runs each copy to get its version.
func (s *cniStatus) findPlugins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(s.Timeout, 5*time.Second))
	defer cancel()
	for _, dir := range s.plugins {
		path := filepath.Join(dir, pluginName)
		if !isFile(path) {
			continue
		}
		p := cniPluginState{Path: path}
		var out bytes.Buffer
		_, err := s.Exec(ctx, &out, &out, path)
		if m := pluginVersion.FindSubmatch(out.Bytes()); m != nil {
			p.Version = string(m[1])
		} else {
			s.missing("%s reports no version%s: llcli cni install-plugin --to %s", path, output.Prefixed(": ", errorText(err)), dir)
		}
		s.Plugins = append(s.Plugins, p)
	}
	switch {
	case len(s.Plugins) > 0:
	case len(s.plugins) == 1:
		s.missing("%s is not in %s: install the package loxilight, or llcli cni install-plugin --from FILE --to %[2]s", pluginName, s.plugins[0])
	default:
		s.missing("%s is not in %s: install the package loxilight, or llcli cni install-plugin --from FILE", pluginName, strings.Join(s.plugins, " or "))
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *cniStatus) print() {
	line := func(title, text string) { s.Printf("%-15s%s\n", title, text) }
	word := func(ready bool) string {
		if ready {
			return s.Painter().Paint(output.Green, "ready")
		}
		return s.Painter().Paint(output.Red, "not ready")
	}
	line("pods", word(s.Ready))
	for _, reason := range s.Reasons {
		line("", output.Clean(reason))
	}
	if d := s.Daemon; d != nil {
		where := output.Prefixed(", state in ", d.StateDir)
		line("daemon", fmt.Sprintf("%s, %s, instance %s, at %s%s", word(d.Ready), output.Clean(d.Version), output.Clean(d.Instance), output.Clean(d.Socket), output.Clean(where)))
	} else {
		line("daemon", s.Painter().Paint(output.Red, "does not answer"))
	}
	if s.alone {
		return
	}
	switch c := s.Configuration; {
	case c == nil:
		line("configuration", "none")
	case c.Ours:
		adapted := ""
		if c.Adapted {
			adapted = ", not as llcli cni install writes it"
		}
		line("configuration", output.Clean(c.Path+", PodNetwork "+c.Network+adapted))
	default:
		line("configuration", output.Clean(c.Path)+", which does not lead to "+pluginName)
	}
	title := "plugin"
	for _, p := range s.Plugins {
		text := p.Path + ", " + cmp.Or(p.Version, "of unknown version")
		if s.Daemon != nil && p.Version != "" && p.Version != s.Daemon.Version {
			text += fmt.Sprintf("; the daemon is %s: llcli cni install-plugin", s.Daemon.Version)
		}
		line(title, output.Clean(text))
		title = ""
	}
	if len(s.Plugins) == 0 {
		line(title, "none")
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
