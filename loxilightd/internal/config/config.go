// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration of the daemon: what it needs to know
// before it can be told anything. Every key has a default, and a key that does
// not exist is an error. What is forwarded where is not configuration: that is
// desired state.
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
)

// DefaultFile is where the package installs the configuration.
const DefaultFile = "/etc/loxilight/loxilightd.yaml"

// DefaultInstance is the instance whose folders bear no name of an instance.
const DefaultInstance = "default"

// Config is the configuration of one daemon. [Default] makes a valid one.
type Config struct {
	Instance string // [a-z0-9]([-a-z0-9]*[a-z0-9])?, at most 32 characters

	RunDir    string // sockets and lock
	StateDir  string // desired state
	PinDir    string // kernel objects that outlive the daemon
	ObjectDir string // *.yaml in it are the objects of owner file

	SwitchNamespace string // name of a network namespace; "host": the daemon's own
	HostDevice      string // end of the link to that namespace that the host has; empty: no link
	SwitchDevice    string // and the end that the namespace has
	Tables          datapath.Tables
	AutoSizes       []string // keys of the tables whose size Memory has chosen
	Memory          Memory

	Backend       string        // which data plane: ebpf, or fake for tests
	Attach        string        // tcx or tc forces the hook; empty: the best there is
	SweepInterval time.Duration // how often all connections are looked through; 0: the data plane's default

	HistoryRevisions int   // how many revisions can be gone back to
	HistoryBytes     int64 // what is kept for that on disk, at most

	// Exempt is what no rule of the firewall can shut out: how the node is managed.
	Exempt []datapath.Match

	// IPAMPlugins are the folders of IPAM plugins. No plugin in another folder is run.
	IPAMPlugins []string
	// ReservedHostPorts are ports of the node that no pod gets.
	ReservedHostPorts []datapath.PortRange

	LogLevel  slog.Level
	LogFormat string // text, json
}

// Default returns the configuration of an instance that is told nothing.
// Instances other than [DefaultInstance] have folders and a namespace of their
// own, by their name.
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

// Load reads the configuration from path. A file that is not there is the
// default configuration if path is [DefaultFile], and an error anywhere else.
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

var instancePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// maxRunDir leaves room for the names of the sockets in the 107 bytes that the
// address of a socket can have.
const maxRunDir = 107 - len("/control.sock.new")

// maxTable is the most entries that any table can be told to have.
const maxTable = 1 << 28

func parseInstance(s string) (string, error) {
	if !instancePattern.MatchString(s) {
		return "", fmt.Errorf("%q is no name: at most 32 of a-z, 0-9 and - between them", s)
	}
	return s, nil
}

// parseDir wants a clean absolute path, so that two instances with the same
// folder have it by the same name.
func parseDir(s string) (string, error) {
	if !filepath.IsAbs(s) || filepath.Clean(s) == "/" || strings.ContainsFunc(s, unicode.IsControl) {
		return "", fmt.Errorf("%q is no folder: want an absolute path", s)
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

// longestDevice is how long the name of a device can be.
const longestDevice = 15

// hostDevice is the default end of the link between host and switch that the host has:
// by the name of the instance, as far as that fits.
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
		return "", fmt.Errorf("%q is no name of a device: at most %d characters, or empty for no link between host and switch", s, longestDevice)
	}
	return s, nil
}

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_][-.A-Za-z0-9_]{0,62}$`)

func parseNamespace(s string) (string, error) {
	if !namespacePattern.MatchString(s) {
		return "", fmt.Errorf("%q is no name of a network namespace: want a name such as loxilight, or host", s)
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
	return 0, fmt.Errorf("%q is no level: want debug, info, warn or error", s)
}

// RestartNeeded names the keys in which d differs from c and which a running
// daemon cannot take over.
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
