// SPDX-License-Identifier: Apache-2.0

// Package config reads the configuration of the agent. Every key has a default, and a
// key that does not exist is an error. It neither dials nor looks at the node.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"gopkg.in/yaml.v3"
)

// DefaultFile is the configuration file if none is given.
const DefaultFile = "/etc/loxilight/agent.yaml"

// Config is the configuration of one agent. [Default] makes a valid one.
type Config struct {
	// APIServer is the URL of the API server. Empty: as in the kubeconfig, or in the environment of
	// a pod; that address must be reachable without our own services.
	APIServer        string       `yaml:"apiServer"`
	Tunnel           Tunnel       `yaml:"tunnel"`
	Masquerade       Masquerade   `yaml:"masquerade"`
	NodePorts        NodePorts    `yaml:"nodePorts"`
	LoadBalancer     LoadBalancer `yaml:"loadBalancer"`
	ExternalIPs      ExternalIPs  `yaml:"externalIPs"`
	IdleTimeout      IdleTimeout  `yaml:"idleTimeout"`
	Resolvers        Resolvers    `yaml:"resolvers"`
	ServiceProxyName string       `yaml:"serviceProxyName"` // label service.kubernetes.io/service-proxy-name of the Services that are ours
	Health           Listen       `yaml:"health"`
	Metrics          Listen       `yaml:"metrics"`
	Log              Log          `yaml:"log"`
}

// Tunnel configures how pods on different nodes reach each other.
type Tunnel struct {
	Type   string `yaml:"type"`   // vxlan, geneve, gre; none: the underlay routes pods
	VNI    uint32 `yaml:"vni"`    // for gre, the key
	Port   int    `yaml:"port"`   // UDP port; 0: the default for the type
	MTU    int    `yaml:"mtu"`    // of the device, bytes; 0: follows the underlay
	Device string `yaml:"device"` // its name; empty: derived from type and VNI
}

// Masquerade configures the source address of packets from pods to the outside.
type Masquerade struct {
	Enabled bool     `yaml:"enabled"`
	Except  []string `yaml:"except"` // destinations that see the pods' own addresses: addresses, prefixes
}

// NodePorts selects the node's addresses for node ports.
type NodePorts struct {
	Addresses []string `yaml:"addresses"` // prefixes; empty: the node's InternalIPs and ExternalIPs
}

// LoadBalancer assigns addresses to Services of that type.
type LoadBalancer struct {
	Pools    []Pool `yaml:"pools"`
	Announce bool   `yaml:"announce"` // answer ARP and neighbour solicitations for them
	// Allowed are the prefixes in which addresses that other controllers write into the status of
	// Services are served. If empty: without pools, all addresses are served; with pools, only the
	// addresses in the pools.
	Allowed []string `yaml:"allowed"`
}

// ExternalIPs selects the addresses that Services may have in spec.externalIPs.
type ExternalIPs struct {
	Allowed []string `yaml:"allowed"` // prefixes; empty: none
}

// IdleTimeout is the time without packets after which connections to Services end.
type IdleTimeout struct {
	TCP  time.Duration `yaml:"tcp"`
	UDP  time.Duration `yaml:"udp"`
	SCTP time.Duration `yaml:"sctp"`
}

// Resolvers selects the DNS servers from whose responses the addresses of domainNames in
// ClusterNetworkPolicies are learnt.
type Resolvers struct {
	Services  []string `yaml:"services"`  // namespace/name: their cluster IPs and endpoints
	Addresses []string `yaml:"addresses"` // further servers
}

// Pool is a set of addresses that can be assigned.
type Pool struct {
	Name      string   `yaml:"name"`
	Addresses []string `yaml:"addresses"` // addresses, prefixes, ranges
}

// Listen is an address to listen on.
type Listen struct {
	Listen string `yaml:"listen"` // host:port; empty: do not listen
}

// Log configures the level and format of the log.
type Log struct {
	Level  slog.Level `yaml:"level"`
	Format string     `yaml:"format"` // text, json
}

// Default returns the default configuration.
func Default() *Config {
	return &Config{
		Tunnel:       Tunnel{Type: "vxlan", VNI: 100},
		Masquerade:   Masquerade{Enabled: true},
		LoadBalancer: LoadBalancer{Announce: true},
		Resolvers:    Resolvers{Services: []string{"kube-system/kube-dns"}},
		IdleTimeout:  IdleTimeout{TCP: 24 * time.Hour, UDP: 2 * time.Minute, SCTP: 2 * time.Hour},
		Health:       Listen{":10256"},
		Metrics:      Listen{"127.0.0.1:10249"},
		Log:          Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Load reads the configuration from path. A missing file means the default configuration if path is
// [DefaultFile], otherwise an error.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultFile {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse reads the configuration from data; name is for errors.
func Parse(name string, data []byte) (*Config, error) {
	c := Default()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := dec.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: one document only", name)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

var devicePattern = regexp.MustCompile(`^[A-Za-z0-9_][-.A-Za-z0-9_]{0,12}$`)

func (c *Config) check() error {
	if u, err := url.Parse(c.APIServer); c.APIServer != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return fmt.Errorf("apiServer: %q is not a URL, want https://ADDRESS:PORT", c.APIServer)
	}
	for key, prefixes := range map[string][]string{"externalIPs.allowed": c.ExternalIPs.Allowed, "loadBalancer.allowed": c.LoadBalancer.Allowed} {
		for i, p := range prefixes {
			if !isPrefix(p) {
				return fmt.Errorf("%s[%d]: %q is not a prefix, such as 198.51.100.0/24", key, i, p)
			}
		}
	}
	if err := c.Tunnel.check(); err != nil {
		return fmt.Errorf("tunnel.%w", err)
	}
	for i, e := range c.Masquerade.Except {
		if !isPrefix(e) && !isAddress(e) {
			return fmt.Errorf("masquerade.except[%d]: %q is neither an address nor a prefix", i, e)
		}
	}
	for i, a := range c.NodePorts.Addresses {
		if !isPrefix(a) {
			return fmt.Errorf("nodePorts.addresses[%d]: %q is not a prefix, such as 192.0.2.0/24", i, a)
		}
	}
	if err := c.LoadBalancer.check(); err != nil {
		return fmt.Errorf("loadBalancer.%w", err)
	}
	if err := c.Resolvers.check(); err != nil {
		return fmt.Errorf("resolvers.%w", err)
	}
	if err := c.IdleTimeout.check(); err != nil {
		return fmt.Errorf("idleTimeout.%w", err)
	}
	for key, listen := range map[string]string{"health.listen": c.Health.Listen, "metrics.listen": c.Metrics.Listen} {
		if _, _, err := net.SplitHostPort(listen); listen != "" && err != nil {
			return fmt.Errorf("%s: %q is not of the form host:port", key, listen)
		}
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		return fmt.Errorf("log.format: %q is not one of text, json", c.Log.Format)
	}
	return nil
}

func (t *Tunnel) check() error {
	if types := append(slices.Clone(api.TunnelTypes), "none"); !slices.Contains(types, t.Type) {
		return fmt.Errorf("type: %q is not one of %s", t.Type, strings.Join(types, ", "))
	}
	if t.Type != "gre" && t.VNI > 1<<24-1 {
		return fmt.Errorf("vni: %d is larger than %d", t.VNI, 1<<24-1)
	}
	if t.Port < 0 || t.Port > 65535 {
		return fmt.Errorf("port: %d is not between 0 and 65535", t.Port)
	}
	if t.MTU < 0 || t.MTU > 65535 {
		return fmt.Errorf("mtu: %d is not between 0 and 65535", t.MTU)
	}
	if t.Device != "" && !devicePattern.MatchString(t.Device) {
		return fmt.Errorf("device: %q is not a valid device name: at most 13 characters", t.Device)
	}
	return nil
}

// The daemon's bounds for an idle timeout.
const (
	minIdle = time.Second
	maxIdle = 7 * 24 * time.Hour
)

func (i *IdleTimeout) check() error {
	for _, t := range []struct {
		key   string
		value time.Duration
	}{{"tcp", i.TCP}, {"udp", i.UDP}, {"sctp", i.SCTP}} {
		if t.value < minIdle || t.value > maxIdle {
			return fmt.Errorf("%s: %v is not between 1s and 168h", t.key, t.value)
		}
	}
	return nil
}

func (l *LoadBalancer) check() error {
	seen := map[string]bool{}
	for i, p := range l.Pools {
		if p.Name == "" || seen[p.Name] {
			return fmt.Errorf("pools[%d].name: %q is empty or a duplicate", i, p.Name)
		}
		seen[p.Name] = true
		if len(p.Addresses) == 0 {
			return fmt.Errorf("pools[%d].addresses: must not be empty", i)
		}
		for j, a := range p.Addresses {
			if _, err := ParseRange(a); err != nil {
				return fmt.Errorf("pools[%d].addresses[%d]: %w", i, j, err)
			}
		}
	}
	return nil
}

// Prefixes parses prefixes that were checked when the configuration was read.
func Prefixes(texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes
}

func isPrefix(s string) bool { _, err := netip.ParsePrefix(s); return err == nil }

func isAddress(s string) bool { _, err := netip.ParseAddr(s); return err == nil }
