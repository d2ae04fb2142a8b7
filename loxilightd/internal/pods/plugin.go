// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// plugin is an IPAM plugin and its input, which is sufficient to release the addresses later,
// without the caller's configuration.
type plugin struct {
	Type   string          `json:"type"`
	Args   string          `json:"args,omitempty"`
	Config json.RawMessage `json:"config"`
}

// maxOutput is the maximum length of a plugin's output, in bytes.
const maxOutput = 1 << 20

func (s *Server) newPlugin(p *api.CNIParams, c *conf, n *Network) *plugin {
	return &plugin{Type: c.ipam.Type, Args: p.Args, Config: configFor(p.Config, c, n, s.StateDir)}
}

// newest is the latest version of the specification that is used with IPAM plugins: later versions
// do not change plugins' input and output, and many installed plugins do not support them.
const newest = "1.0.0"

// configFor returns the configuration for an IPAM plugin, based on the runtime's configuration. For
// host-local, it adds a data directory below dir and the network's address ranges, unless they are
// configured.
func configFor(text json.RawMessage, c *conf, n *Network, dir string) json.RawMessage {
	var whole, section map[string]json.RawMessage
	if json.Unmarshal(text, &whole) != nil || json.Unmarshal(whole["ipam"], &section) != nil {
		return text // it has already been decoded
	}
	put := func(m map[string]json.RawMessage, key string, v any) {
		if raw, err := json.Marshal(v); err == nil { // decoded JSON can be encoded again
			m[key] = raw
		}
	}
	if c.CNIVersion == "1.1.0" {
		put(whole, "cniVersion", newest)
	}
	if c.ipam.Type == "host-local" {
		if _, named := section["dataDir"]; !named {
			put(section, "dataDir", filepath.Join(dir, "host-local"))
		}
		_, ranges := section["ranges"]
		_, subnet := section["subnet"]
		if !ranges && !subnet && len(n.Subnets) > 0 {
			put(section, "ranges", rangesOf(n))
		}
		put(whole, "ipam", section)
	}
	raw, err := json.Marshal(whole)
	if err != nil {
		return text
	}
	return raw
}

// span is a range of addresses in host-local's format.
type span struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart"`
	Gateway    netip.Addr   `json:"gateway"`
}

func rangesOf(n *Network) (ranges [][]span) {
	for _, subnet := range n.Subnets {
		ranges = append(ranges, []span{{subnet.Masked(), ipam.Host(subnet).Next(), ipam.Gateway(subnet)}})
	}
	return ranges
}

// runPlugin runs a plugin command that returns no result.
func (s *Server) runPlugin(ctx context.Context, g *plugin, command string, o ipam.Owner, netns string, prev json.RawMessage) *api.Error {
	config := g.Config
	if len(prev) > 0 {
		var whole map[string]json.RawMessage
		if json.Unmarshal(config, &whole) == nil {
			whole["prevResult"] = prev
			if raw, err := json.Marshal(whole); err == nil {
				config = raw
			}
		}
	}
	_, err := s.execute(ctx, g, command, o, netns, config)
	return err
}

// execute runs the plugin. If the plugin fails, the error contains the reason from its output.
func (s *Server) execute(ctx context.Context, g *plugin, command string, o ipam.Owner, netns string, config []byte) ([]byte, *api.Error) {
	path, refused := s.findPlugin(g.Type)
	if refused != nil {
		return nil, refused
	}
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.WaitDelay = time.Second
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + o.ContainerID, "CNI_IFNAME=" + o.IfName,
		"CNI_NETNS=" + netns, "CNI_ARGS=" + g.Args, "CNI_PATH=" + strings.Join(s.Plugins, ":")}
	var stdout, stderr bytes.Buffer
	cmd.Stdin = bytes.NewReader(config)
	cmd.Stdout, cmd.Stderr = &limited{&stdout}, &limited{&stderr}
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, unavailable("IPAM plugin %s %s: %v", g.Type, command, ctx.Err())
	}
	var said struct {
		Code         int
		Msg, Details string
	}
	if errors.As(err, new(*exec.ExitError)) && json.Unmarshal(stdout.Bytes(), &said) == nil && said.Msg != "" {
		return nil, coded(api.ReasonInternal, said.Code, "IPAM plugin %s %s: %s", g.Type, command, strings.TrimSpace(said.Msg+" "+said.Details))
	}
	return nil, failed("IPAM plugin %s %s: %v: %s", g.Type, command, err, strings.TrimSpace(stderr.String()))
}

// limited keeps the first maxOutput bytes and discards the rest.
type limited struct{ b *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.b.Write(p[:min(len(p), max(0, maxOutput-l.b.Len()))])
	return len(p), nil
}

var _ io.Writer = (*limited)(nil)

// addressByPlugin runs the configured plugin to assign the addresses. The plugin's input is saved
// first.
func (s *Server) addressByPlugin(ctx context.Context, p *api.CNIParams, c *conf, n *Network, r *record) *api.Error {
	r.Plugin = s.newPlugin(p, c, n)
	if _, err := s.findPlugin(r.Plugin.Type); err != nil {
		r.Plugin = nil // the plugin was not found, so it has assigned no addresses
		return err
	}
	if err := s.save(r); err != nil {
		return failed("%v", err)
	}
	text, err := s.execute(ctx, r.Plugin, api.CNIAdd, r.owner(), r.Netns, r.Plugin.Config)
	if err != nil {
		return err
	}
	given := &result{}
	if err := decode("result", text, given); err != nil {
		return coded(api.ReasonInternal, api.CNIDecodingFailed, "IPAM plugin %s: %s", c.ipam.Type, err.Message)
	}
	for _, ip := range given.IPs {
		if !ip.Address.IsValid() || slices.Contains(r.Addresses, ip.Address) {
			return failed("IPAM plugin %s: its result has an invalid or a repeated address", c.ipam.Type)
		}
		gw := netip.Addr{}
		if ip.Gateway != nil {
			gw = *ip.Gateway
		}
		if err := s.reaches(ctx, n, ip.Address, gw); err != nil {
			return err
		}
		r.Addresses, r.Gateways = append(r.Addresses, ip.Address), append(r.Gateways, gw)
	}
	r.Routes = given.Routes
	if len(given.DNS) > 0 && len(r.DNS) == 0 {
		r.DNS = given.DNS
	}
	return nil
}

// reaches rejects an address that cannot reach any other host: neither the address nor its gateway
// is in one of the network's subnets, and the node does not have the gateway. An address without a
// gateway is accepted, because other routes may lead to it.
func (s *Server) reaches(ctx context.Context, n *Network, address netip.Prefix, gw netip.Addr) *api.Error {
	in := func(a netip.Addr) bool {
		return slices.ContainsFunc(n.Subnets, func(subnet netip.Prefix) bool { return subnet.Contains(a) })
	}
	if !gw.IsValid() || in(address.Addr()) || in(gw) {
		return nil
	}
	own, err := s.Links.NodeAddresses(ctx)
	if err != nil {
		return failed("addresses of the node: %v", err)
	}
	if slices.Contains(own, gw) {
		return nil
	}
	return badConfig("ipam.ranges", "%s with gateway %s is in none of the subnets %v of the PodNetwork, and the node has no such gateway: the pod would reach no other host", address, gw, n.Subnets)
}
