// SPDX-License-Identifier: Apache-2.0

// Package config reads the daemon's configuration: the settings that it needs before it can receive
// requests. Every key has a default, and an unknown key is an error. Forwarding is not configured
// here: it belongs to the desired state.
package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// DefaultFile is where the package installs the configuration.
const DefaultFile = "/etc/loxilight/loxilightd.yaml"

// DefaultInstance is the instance whose directories are not named after the instance.
const DefaultInstance = "default"

// Config is the configuration of one daemon. [Default] returns a valid one.
type Config struct {
	Instance string // [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 32 characters

	RunDir    string // sockets and lock
	StateDir  string // desired state
	PinDir    string // kernel objects that outlive the daemon
	ObjectDir string // directory of the *.yaml files of owner file

	SwitchNamespace string // name of a network namespace; "host": the daemon's own
	HostDevice      string // host's end of the link to that namespace; empty: no link
	SwitchDevice    string // the namespace's end of that link
	Tables          datapath.Tables
	AutoSizes       []string // configuration keys of the tables whose sizes depend on Memory
	Memory          Memory

	Backend string // the data plane: ebpf, or fake for tests
	Attach  string // tcx or tc forces the hook; empty: the best available one
	// SweepInterval is the interval of sweeps over all connections; 0: the data plane's default.
	SweepInterval time.Duration
	NameGrace     time.Duration // new connections may use an address of a name this long after its TTL

	HistoryRevisions int   // how many revisions are kept for rollback
	HistoryBytes     int64 // limit on their size on disk

	// Exempt are packets that no firewall rule can drop, so that the node can be managed.
	Exempt []datapath.Match
	// Failsafe are rules, by direction, for traffic of the node itself that no Policy can deny.
	Failsafe [2][]policy.Rule

	// IPAMPlugins are the directories that contain IPAM plugins. Plugins in other directories are
	// not run.
	IPAMPlugins []string
	// ReservedHostPorts are node ports that pods cannot get.
	ReservedHostPorts []datapath.PortRange

	LogLevel  slog.Level
	LogFormat string // text, json
}

// Default returns the default configuration of an instance. The directories and the namespace of
// instances other than [DefaultInstance] contain the instance's name.
func Default(instance string) *Config { return defaults(instance, machineMemory()) }

func defaults(instance string, memory Memory) *Config {
	suffix := ""
	if instance != DefaultInstance {
		suffix = "-" + instance
	}
	c := &Config{
		Instance:         instance,
		RunDir:           "/run/loxilight" + suffix,
		StateDir:         "/var/lib/loxilight" + suffix,
		PinDir:           "/sys/fs/bpf/loxilight" + suffix,
		ObjectDir:        "/etc/loxilight" + suffix + "/conf.d",
		SwitchNamespace:  "loxilight" + suffix,
		HostDevice:       hostDevice(instance),
		SwitchDevice:     "hs_host",
		Tables:           datapath.TablesFor(memory.Bytes),
		Memory:           memory,
		Backend:          "ebpf",
		HistoryRevisions: 1000,
		HistoryBytes:     64 << 20,
		Failsafe:         defaultFailsafe(),
		NameGrace:        time.Minute,
		LogLevel:         slog.LevelInfo,
		IPAMPlugins:      []string{"/opt/cni/bin", "/usr/lib/cni"},
		ReservedHostPorts: []datapath.PortRange{
			{First: 22, Last: 22}, {First: 2379, Last: 2380}, {First: 4789, Last: 4789}, {First: 6081, Last: 6081},
			{First: 6443, Last: 6443}, {First: 10248, Last: 10259},
		},
		LogFormat: "text",
	}
	for i := range schema {
		if name := schema[i].name; strings.HasPrefix(name, "tables.") {
			c.AutoSizes = append(c.AutoSizes, name)
		}
	}
	return c
}

// Load reads the configuration from path. If the file is missing, Load returns the default
// configuration if path is [DefaultFile], else an error.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultFile {
		return Default(DefaultInstance), nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// IsInstance reports whether name is a valid instance name.
func IsInstance(name string) bool { return instancePattern.MatchString(name) }

var instancePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// maxRunDir leaves room for the names of the sockets in the 107 bytes of a socket address.
const maxRunDir = 107 - len("/control.sock.new")

// maxTable is the largest size that can be configured for a table.
const maxTable = 1 << 28

func parseInstance(s string) (string, error) {
	if !instancePattern.MatchString(s) {
		return "", fmt.Errorf("%q is not a valid name: use at most 32 of a-z, 0-9 and -, with no - at the start or end", s)
	}
	return s, nil
}

// parseDir checks that s is an absolute path and returns it cleaned, so that two instances that use
// the same directory have the same name for it.
func parseDir(s string) (string, error) {
	if !filepath.IsAbs(s) || filepath.Clean(s) == "/" || strings.ContainsFunc(s, unicode.IsControl) {
		return "", fmt.Errorf("%q is not a valid directory: want an absolute path", s)
	}
	return filepath.Clean(s), nil
}

func parseRunDir(s string) (string, error) {
	dir, err := parseDir(s)
	if err == nil && len(dir) > maxRunDir {
		return "", fmt.Errorf("%q is too long for sockets in it: at most %d bytes", s, maxRunDir)
	}
	return dir, err
}

// longestDevice is the maximum length of an interface name.
const longestDevice = 15

// hostDevice returns the default name of the host's end of the link between host and switch. The
// name contains the name of the instance, or a hash of the instance's name if that is too long.
func hostDevice(instance string) string {
	if instance == DefaultInstance {
		return "loxi_host"
	}
	name := "loxi_" + instance
	if len(name) > longestDevice {
		h := fnv.New32a()
		_, _ = h.Write([]byte(instance)) // never fails
		name = fmt.Sprintf("loxi_%08x", h.Sum32())
	}
	return name
}

var devicePattern = regexp.MustCompile(`^[A-Za-z0-9_][-.A-Za-z0-9_]{0,14}$`)

func parseDevice(s string) (string, error) {
	if s != "" && !devicePattern.MatchString(s) {
		return "", fmt.Errorf("%q is not a valid device name: at most %d characters, or empty for no link between host and switch", s, longestDevice)
	}
	return s, nil
}

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_][-.A-Za-z0-9_]{0,62}$`)

func parseNamespace(s string) (string, error) {
	if !namespacePattern.MatchString(s) {
		return "", fmt.Errorf("%q is not a valid name of a network namespace: want a name such as loxilight, or host", s)
	}
	return s, nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is not a valid level: want debug, info, warn or error", s)
}

// RestartNeeded returns the keys in which d differs from c and which a running daemon cannot
// change.
func (c *Config) RestartNeeded(d *Config) []string {
	var keys []string
	for i := range schema {
		k := &schema[i]
		if !k.live && k.get(c) != k.get(d) {
			keys = append(keys, k.name)
		}
	}
	return keys
}
