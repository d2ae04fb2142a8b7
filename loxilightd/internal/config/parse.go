// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// key is one key of the file, in dotted form.
type key struct {
	name string
	set  func(c *Config, value string) error
	get  func(c *Config) any
	live bool // a running daemon applies a new value
	// list parses a value that is a list; nil: the value is a scalar.
	list func(r *reader, c *Config, name string, n *yaml.Node)
}

// schema contains all keys. The instance comes first, because the defaults of the other keys depend
// on it.
var schema = []key{
	text("instance", func(c *Config) *string { return &c.Instance }, parseInstance),
	text("runDir", func(c *Config) *string { return &c.RunDir }, parseRunDir),
	text("stateDir", func(c *Config) *string { return &c.StateDir }, parseDir),
	text("pinDir", func(c *Config) *string { return &c.PinDir }, parseDir),
	text("objectDir", func(c *Config) *string { return &c.ObjectDir }, parseDir),
	text("switch.namespace", func(c *Config) *string { return &c.SwitchNamespace }, parseNamespace),
	text("switch.hostDevice", func(c *Config) *string { return &c.HostDevice }, parseDevice),
	text("switch.switchDevice", func(c *Config) *string { return &c.SwitchDevice }, parseDevice),
	sizeRange("tables.connections", func(c *Config) *uint32 { return &c.Tables.ConnectionsMin }, func(c *Config) *uint32 { return &c.Tables.Connections }),
	size("tables.services", func(c *Config) *uint32 { return &c.Tables.Services }),
	size("tables.backends", func(c *Config) *uint32 { return &c.Tables.Backends }),
	size("tables.affinity", func(c *Config) *uint32 { return &c.Tables.Affinity }),
	size("tables.ranges", func(c *Config) *uint32 { return &c.Tables.Ranges }),
	size("tables.rules", func(c *Config) *uint32 { return &c.Tables.Rules }),
	size("tables.prefixes", func(c *Config) *uint32 { return &c.Tables.Prefixes }),
	size("tables.entities", func(c *Config) *uint32 { return &c.Tables.Entities }),
	text("datapath.backend", func(c *Config) *string { return &c.Backend }, oneOf("ebpf", "fake")),
	text("datapath.attach", func(c *Config) *string { return &c.Attach }, oneOf("", "tcx", "tc")),
	text("datapath.sweepInterval", func(c *Config) *time.Duration { return &c.SweepInterval }, parseInterval),
	text("history.revisions", func(c *Config) *int { return &c.HistoryRevisions }, parseRevisions),
	text("history.bytes", func(c *Config) *int64 { return &c.HistoryBytes }, parseBytes),
	{
		name: "firewall.exempt", live: true,
		get:  func(*Config) any { return nil },
		list: func(r *reader, c *Config, name string, n *yaml.Node) { c.Exempt = r.exemptions(name, n) },
	},
	text("policy.nameGrace", func(c *Config) *time.Duration { return &c.NameGrace }, parseGrace),
	failsafe("policy.failsafe.in", policy.Ingress),
	failsafe("policy.failsafe.out", policy.Egress),
	list("cni.ipamPlugins", func(c *Config) *[]string { return &c.IPAMPlugins }, parseDir),
	list("cni.reservedHostPorts", func(c *Config) *[]datapath.PortRange { return &c.ReservedHostPorts }, parsePorts),
	live(text("log.level", func(c *Config) *slog.Level { return &c.LogLevel }, parseLevel)),
	text("log.format", func(c *Config) *string { return &c.LogFormat }, oneOf("text", "json")),
	{
		name: "metrics.listen",
		get:  func(*Config) any { return "" },
		set: func(_ *Config, s string) error {
			if s != "" {
				return errors.New("this version has no metrics: leave it empty; llcli counters shows the counters")
			}
			return nil
		},
	},
}

func text[T comparable](name string, at func(*Config) *T, parse func(string) (T, error)) key {
	return key{
		name: name,
		get:  func(c *Config) any { return *at(c) },
		set: func(c *Config, s string) error {
			v, err := parse(s)
			if err == nil {
				*at(c) = v
			}
			return err
		},
	}
}

// list returns a key whose value is a list, which may be empty.
func list[T comparable](name string, at func(*Config) *[]T, parse func(string) (T, error)) key {
	return key{
		name: name,
		get:  func(c *Config) any { return fmt.Sprint(*at(c)) },
		list: func(r *reader, c *Config, name string, n *yaml.Node) {
			all := []T{}
			if n.Kind != yaml.SequenceNode || len(n.Content) > 0 {
				r.words(name, n, func(word string) error {
					v, err := parse(word)
					if err != nil {
						return err
					}
					return add(&all, v, word)
				})
			}
			*at(c) = all
		},
	}
}

func parseSize(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < 1 || n > maxTable {
		return 0, fmt.Errorf("%q is not a valid size: want auto, or a number of entries from 1 to %d", s, maxTable)
	}
	return uint32(n), nil
}

func live(k key) key {
	k.live = true
	return k
}

func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if slices.Contains(words, s) {
			return s, nil
		}
		return "", fmt.Errorf("%q is not one of %s", s, strings.Trim(strings.Join(words, ", "), ", "))
	}
}

func parseInterval(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 100*time.Millisecond || d > time.Hour {
		return 0, fmt.Errorf("%q is not a valid interval: want a duration from 100ms to 1h, such as 5s", s)
	}
	return d, nil
}

func parseGrace(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > 24*time.Hour || d%time.Second != 0 {
		return 0, fmt.Errorf("%q is not a valid time: want whole seconds from 0s to 24h, such as 60s", s)
	}
	return d, nil
}

func parseRevisions(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n < 1 || n > maxRevisions {
		return 0, fmt.Errorf("%q is not a valid number of revisions: want 1 to %d", s, maxRevisions)
	}
	return int(n), nil
}

// parseBytes parses a size such as 64MiB.
func parseBytes(s string) (int64, error) {
	number, shift := s, 0
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			number, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(number, 10, 31)
	if n <<= shift; err != nil || n < minHistory || n > maxHistory {
		return 0, fmt.Errorf("%q is not a valid size: want 64KiB to 4GiB, such as 64MiB", s)
	}
	return int64(n), nil
}

// Limits of the history.
const (
	maxRevisions = 100000
	minHistory   = 64 << 10
	maxHistory   = 4 << 30
)

// entry is one value in the file, with its position.
type entry struct {
	line  int
	value string
	node  *yaml.Node
}

// Parse parses a configuration; file is the file name for error messages. It returns all errors,
// each with its line number.
func Parse(file string, data []byte) (*Config, error) {
	return parse(file, data, machineMemory())
}

func parse(file string, data []byte, memory Memory) (*Config, error) {
	r := reader{file: file, found: map[string]entry{}}
	r.read(data)
	c := defaults(DefaultInstance, memory)
	for i := range schema {
		k := &schema[i]
		e, ok := r.found[k.name]
		if !ok {
			continue
		}
		if k.list != nil {
			k.list(&r, c, k.name, e.node)
		} else if err := k.set(c, e.value); err != nil {
			r.failf(e.line, "%s: %w", k.name, err)
		} else if k.name == "instance" {
			c = defaults(c.Instance, memory)
		}
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// reader flattens a document into dotted keys.
type reader struct {
	file  string
	found map[string]entry
	errs  []error
}

func (r *reader) failf(line int, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %w", r.file, line, fmt.Errorf(format, args...)))
}

func (r *reader) read(data []byte) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return // empty: all defaults
	} else if err != nil {
		r.errs = append(r.errs, syntaxError(r.file, err))
		return
	}
	r.mapping("", doc.Content[0])
	var more yaml.Node
	if err := d.Decode(&more); err == nil {
		r.failf(more.Line, "only one YAML document is allowed")
	} else if !errors.Is(err, io.EOF) {
		r.errs = append(r.errs, syntaxError(r.file, err))
	}
}

// syntaxError converts "yaml: line 3: …" to the form of the other errors.
func syntaxError(file string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if line, what, ok := strings.Cut(rest, ": "); ok {
			return fmt.Errorf("%s:%s: %s", file, line, what)
		}
	}
	return fmt.Errorf("%s: %s", file, text)
}

func (r *reader) mapping(prefix string, n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a key with nothing after it
	}
	if n.Kind != yaml.MappingNode {
		head := strings.TrimSuffix(prefix, ".")
		if head != "" {
			head += ": "
		}
		r.failf(n.Line, "%swant keys and values", head)
		return
	}
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := prefix + k.Value
		if line, twice := seen[k.Value]; twice {
			r.failf(k.Line, "%s is already set on line %d", name, line)
			continue
		}
		seen[k.Value] = k.Line
		r.value(name, k, v)
	}
}

func (r *reader) value(name string, k, v *yaml.Node) {
	section := func(s key) bool { return strings.HasPrefix(s.name, name+".") }
	switch {
	case slices.ContainsFunc(schema, section):
		r.mapping(name+".", v)
	case !slices.ContainsFunc(schema, func(s key) bool { return s.name == name }):
		r.failf(k.Line, "unknown key %s; known keys: %s", name, known())
	case slices.ContainsFunc(schema, func(s key) bool { return s.name == name && s.list != nil }):
		r.found[name] = entry{v.Line, "", v}
	case v.Kind != yaml.ScalarNode || v.Tag == "!!null":
		r.failf(v.Line, "%s: want a single value", name)
	default:
		r.found[name] = entry{v.Line, v.Value, v}
	}
}

func known() string {
	names := make([]string, len(schema))
	for i := range schema {
		names[i] = schema[i].name
	}
	return strings.Join(names, ", ")
}
