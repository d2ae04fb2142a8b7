// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// conf is the network configuration that the runtime passes to the plugin. Other fields are
// ignored.
type conf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Network    string          `json:"network"` // name of the PodNetwork; empty: "default"
	MTU        int             `json:"mtu"`
	IPAM       json.RawMessage `json:"ipam"`
	DNS        json.RawMessage `json:"dns"`
	Args       struct {
		CNI struct {
			MAC string   `json:"mac"`
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC          string        `json:"mac"`
		IPs          []string      `json:"ips"`
		PortMappings []portMapping `json:"portMappings"`
		Bandwidth    *bandwidth    `json:"bandwidth"`
	} `json:"runtimeConfig"`
	PrevResult json.RawMessage `json:"prevResult"`
	Valid      attachments     `json:"cni.dev/valid-attachments"`

	ipam     ipamConf // parsed IPAM
	prev     *result  // parsed PrevResult; nil: no previous result
	mac      net.HardwareAddr
	macFrom  string // the configuration field that contains mac
	ips      []netip.Addr
	ipsFrom  string         // the configuration field that contains ips
	lengths  []netip.Prefix // those of ips that have a prefix length
	podName  string
	podSpace string // namespace of the pod
	podUID   string
}

// attachments are the attachments to a network that the runtime considers valid. A runtime without
// attachments (libcni) sends null, which differs from an absent field.
type attachments struct {
	set  bool
	list []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	}
}

// UnmarshalJSON implements [json.Unmarshaler].
func (a *attachments) UnmarshalJSON(text []byte) error {
	a.set = true
	return json.Unmarshal(text, &a.list)
}

// ipamConf contains the fields of the section ipam that the daemon uses.
type ipamConf struct {
	Type   string  `json:"type"` // an IPAM plugin; empty: the daemon assigns addresses itself
	Routes []route `json:"routes"`
}

type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"` // bits per second
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// ownIPAM is the type of the daemon's own IPAM.
const ownIPAM = "loxilight"

// maxPodName is the maximum length of the name of a pod or its namespace.
const maxPodName = 253

// maxContainerID is the maximum length of a container id that an Endpoint accepts.
const maxContainerID = 253

// parseConf checks the configuration of a command.
func parseConf(p *api.CNIParams) (*conf, *api.Error) {
	if p.Command == api.CNIDel {
		return parseDel(p)
	}
	c := &conf{}
	if err := decode("", p.Config, c); err != nil {
		return nil, err
	}
	if c.Network == "" {
		c.Network = "default"
	}
	switch {
	case !slices.Contains(api.CNIVersions, c.CNIVersion):
		return nil, coded(api.ReasonUnsupported, api.CNIVersionUnsupported, "cniVersion: %q is not one of %s", c.CNIVersion, strings.Join(api.CNIVersions, ", "))
	case c.Name == "":
		return nil, badConfig("name", "is missing")
	case c.MTU < 0 || c.MTU > 65535 || c.MTU > 0 && c.MTU < 576:
		return nil, badConfig("mtu", "%d is not between 576 and 65535", c.MTU)
	case !slices.Contains([]string{api.CNIAdd, api.CNICheck, api.CNIGC, api.CNIStatus}, p.Command):
		return nil, badEnvironment("CNI_COMMAND", "%q is not a known command", p.Command)
	}
	if len(c.IPAM) > 0 {
		if err := decode("ipam", c.IPAM, &c.ipam); err != nil {
			return nil, err
		}
	}
	if c.ipam.Type == ownIPAM {
		c.ipam.Type = ""
	}
	if strings.ContainsAny(c.ipam.Type, "/\x00") {
		return nil, badConfig("ipam.type", "%q is not a valid plugin name", c.ipam.Type)
	}
	if p.Command == api.CNIGC || p.Command == api.CNIStatus {
		return c, nil
	}
	if err := checkOwner(p); err != nil {
		return nil, err
	}
	return c, c.parseRest(p)
}

func checkOwner(p *api.CNIParams) *api.Error {
	if p.ContainerID == "" || p.IfName == "" {
		return badEnvironment("CNI_CONTAINERID", "is required for %s, together with CNI_IFNAME", p.Command)
	}
	return nil
}

// parseDel parses the parts of a configuration that DEL can use. It ignores errors, because DEL
// must remove the interface in any case.
func parseDel(p *api.CNIParams) (*conf, *api.Error) {
	c := &conf{}
	var whole, section map[string]json.RawMessage
	_ = json.Unmarshal(p.Config, &whole)
	_ = json.Unmarshal(whole["ipam"], &section)
	for field, v := range map[string]*string{"cniVersion": &c.CNIVersion, "name": &c.Name, "network": &c.Network} {
		_ = json.Unmarshal(whole[field], v)
	}
	_ = json.Unmarshal(section["type"], &c.ipam.Type)
	if c.ipam.Type == ownIPAM || strings.ContainsAny(c.ipam.Type, "/\x00") {
		c.ipam.Type = ""
	}
	if c.Network == "" {
		c.Network = "default"
	}
	return c, checkOwner(p)
}

// parseRest checks the fields that ADD and CHECK need.
func (c *conf) parseRest(p *api.CNIParams) *api.Error {
	if len(p.ContainerID) > maxContainerID {
		return badEnvironment("CNI_CONTAINERID", "has %d bytes, at most %d", len(p.ContainerID), maxContainerID)
	}
	if !strings.HasPrefix(p.Netns, "/") {
		return badEnvironment("CNI_NETNS", "%q is not an absolute path", p.Netns)
	}
	if err := c.parseArgs(p.Args); err != nil {
		return err
	}
	if len(c.PrevResult) > 0 && string(c.PrevResult) != "null" {
		c.prev = &result{}
		if err := decode("prevResult", c.PrevResult, c.prev); err != nil {
			return err
		}
	}
	for i := range c.ipam.Routes {
		if !c.ipam.Routes[i].Dst.IsValid() {
			return badConfig("ipam.routes", "a route has no dst")
		}
	}
	for i := range c.RuntimeConfig.PortMappings {
		if err := c.RuntimeConfig.PortMappings[i].check(); err != nil {
			return err
		}
	}
	if err := c.RuntimeConfig.Bandwidth.check(); err != nil {
		return err
	}
	return checkApart(c.RuntimeConfig.PortMappings)
}

// parseArgs reads CNI_ARGS and the capabilities. If both specify an address, the capability takes
// precedence, as in other plugins.
func (c *conf) parseArgs(text string) *api.Error {
	args := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return badEnvironment("CNI_ARGS", "%q is not of the form KEY=VALUE", pair)
		}
		args[key] = value
	}
	c.podName, c.podSpace, c.podUID = args["K8S_POD_NAME"], args["K8S_POD_NAMESPACE"], args["K8S_POD_UID"]
	if len(c.podName) > maxPodName || len(c.podSpace) > maxPodName || len(c.podUID) > maxPodName {
		return badEnvironment("CNI_ARGS", "the name or the uid of the pod is longer than %d bytes", maxPodName)
	}
	if err := c.parseMAC(args["MAC"]); err != nil {
		return err
	}
	return c.parseIPs(args["IP"])
}

// parseMAC reads the requested MAC address; arg is the MAC address from CNI_ARGS.
func (c *conf) parseMAC(arg string) *api.Error {
	for _, from := range []struct{ field, mac string }{{"runtimeConfig.mac", c.RuntimeConfig.MAC}, {"args.cni.mac", c.Args.CNI.MAC}, {"CNI_ARGS.MAC", arg}} {
		if from.mac == "" {
			continue
		}
		mac, err := net.ParseMAC(from.mac)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || slices.Max(mac) == 0 {
			return badConfig(from.field, "%q is not the MAC address of a host", from.mac)
		}
		c.mac, c.macFrom = mac, from.field
		break
	}
	return nil
}

// parseIPs reads the requested addresses; arg contains the addresses from CNI_ARGS.
func (c *conf) parseIPs(arg string) *api.Error {
	ips := c.RuntimeConfig.IPs
	c.ipsFrom = "runtimeConfig.ips"
	if len(ips) == 0 {
		ips, c.ipsFrom = c.Args.CNI.IPs, "args.cni.ips"
	}
	if len(ips) == 0 && arg != "" {
		ips, c.ipsFrom = strings.Split(arg, ","), "CNI_ARGS.IP"
	}
	for _, text := range ips {
		a, err := netip.ParseAddr(text)
		if p, perr := netip.ParsePrefix(text); perr == nil {
			c.lengths = append(c.lengths, p)
			a, err = p.Addr(), nil
		}
		if err != nil {
			return badConfig(c.ipsFrom, "%q is not a valid address", text)
		}
		c.ips = append(c.ips, a.Unmap())
	}
	return nil
}

// checkLengths rejects addresses whose prefix lengths differ from those of their subnets.
func (c *conf) checkLengths(n *Network) *api.Error {
	for _, p := range c.lengths {
		for _, subnet := range n.Subnets {
			if subnet.Contains(p.Addr()) && subnet.Bits() != p.Bits() {
				return badConfig(c.ipsFrom, "the prefix length of %s differs from subnet %s of PodNetwork/%s; omit it", p, subnet, c.Network)
			}
		}
	}
	return nil
}

// leastRate is the lowest supported rate, in bits per second: at this rate, a packet of 1500 bytes
// takes 12 s.
const leastRate = 1000

func (b *bandwidth) check() *api.Error {
	if b == nil {
		return nil
	}
	for field, rate := range map[string]uint64{"ingressRate": b.IngressRate, "egressRate": b.EgressRate} {
		if rate > 0 && rate < leastRate {
			return badConfig("runtimeConfig.bandwidth."+field, "%d bit/s is below the minimum of %d bit/s; use 0 for no limit", rate, leastRate)
		}
	}
	return nil
}

// blame changes an error about an Endpoint so that it names the configuration field that caused the
// error.
func (c *conf) blame(err *api.Error) *api.Error {
	if err == nil || err.Data == nil || err.Data.Reason != api.ReasonConflict || err.Data.Field != "spec.mac" || c.mac == nil {
		return err
	}
	e := coded(api.ReasonConflict, api.CNIConfigInvalid, "%s", err.Message)
	return e.At("", c.macFrom)
}
