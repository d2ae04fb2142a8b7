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

// conf is the network configuration that the runtime hands the plugin. What it has
// besides is for others.
type conf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Network    string          `json:"network"` // name of the PodNetwork; empty: default
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
	Valid      *[]struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	} `json:"cni.dev/valid-attachments"`

	ipam     ipamConf // of IPAM
	prev     *result  // of PrevResult; nil: there is none
	mac      net.HardwareAddr
	ips      []netip.Addr
	podName  string
	podSpace string // namespace of the pod
}

// ipamConf is what is ours of the section ipam.
type ipamConf struct {
	Type   string  `json:"type"` // of another plugin; empty: the daemon gives addresses itself
	Routes []route `json:"routes"`
}

type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"` // bits a second
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// ownIPAM is the word for the daemon's own.
const ownIPAM = "loxilight"

// maxPodName is how long names of pods and their namespaces are here at most.
const maxPodName = 253

// parseConf checks what a command brings.
func parseConf(p *api.CNIParams) (*conf, *api.Error) {
	c := &conf{}
	if err := json.Unmarshal(p.Config, c); err != nil {
		return nil, coded(api.ReasonInvalid, api.CNIDecodingFailed, "config: %v", err)
	}
	if c.Network == "" {
		c.Network = "default"
	}
	switch {
	case !slices.Contains(api.CNIVersions, c.CNIVersion):
		return nil, coded(api.ReasonUnsupported, api.CNIVersionUnsupported, "cniVersion: %q is none of %s", c.CNIVersion, strings.Join(api.CNIVersions, ", "))
	case c.Name == "":
		return nil, badConfig("name", "is missing")
	case c.MTU < 0 || c.MTU > 65535 || c.MTU > 0 && c.MTU < 576:
		return nil, badConfig("mtu", "%d is not between 576 and 65535", c.MTU)
	case !slices.Contains([]string{api.CNIAdd, api.CNIDel, api.CNICheck, api.CNIGC, api.CNIStatus}, p.Command):
		return nil, badEnvironment("CNI_COMMAND", "%q is none that there is", p.Command)
	}
	if len(c.IPAM) > 0 {
		if err := json.Unmarshal(c.IPAM, &c.ipam); err != nil {
			return nil, coded(api.ReasonInvalid, api.CNIDecodingFailed, "config: ipam: %v", err)
		}
	}
	if c.ipam.Type == ownIPAM {
		c.ipam.Type = ""
	}
	if strings.ContainsAny(c.ipam.Type, "/\x00") {
		return nil, badConfig("ipam.type", "%q is no name of a plugin", c.ipam.Type)
	}
	if p.Command == api.CNIGC || p.Command == api.CNIStatus {
		return c, nil
	}
	if p.ContainerID == "" || p.IfName == "" {
		return nil, badEnvironment("CNI_CONTAINERID", "it and CNI_IFNAME are needed by %s", p.Command)
	}
	if p.Command == api.CNIDel {
		return c, nil // whatever else is wrong with it, what is there is to be removed
	}
	return c, c.parseRest(p)
}

// parseRest checks what ADD and CHECK need.
func (c *conf) parseRest(p *api.CNIParams) *api.Error {
	if !strings.HasPrefix(p.Netns, "/") {
		return badEnvironment("CNI_NETNS", "%q is no absolute path", p.Netns)
	}
	if err := c.parseArgs(p.Args); err != nil {
		return err
	}
	if len(c.PrevResult) > 0 && string(c.PrevResult) != "null" {
		c.prev = &result{}
		if err := json.Unmarshal(c.PrevResult, c.prev); err != nil {
			return coded(api.ReasonInvalid, api.CNIDecodingFailed, "config: prevResult: %v", err)
		}
	}
	for i := range c.ipam.Routes {
		if !c.ipam.Routes[i].Dst.IsValid() {
			return badConfig("ipam.routes", "one of them has no dst")
		}
	}
	for i := range c.RuntimeConfig.PortMappings {
		if err := c.RuntimeConfig.PortMappings[i].check(); err != nil {
			return err
		}
	}
	return nil
}

// parseArgs takes over what CNI_ARGS and the capabilities say. Of several places that
// can name an address the capability goes first, as it does with other plugins.
func (c *conf) parseArgs(text string) *api.Error {
	args := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return badEnvironment("CNI_ARGS", "%q is no KEY=VALUE", pair)
		}
		args[key] = value
	}
	c.podName, c.podSpace = args["K8S_POD_NAME"], args["K8S_POD_NAMESPACE"]
	if len(c.podName) > maxPodName || len(c.podSpace) > maxPodName {
		return badEnvironment("CNI_ARGS", "the name of the pod is longer than %d bytes", maxPodName)
	}
	for _, mac := range []string{c.RuntimeConfig.MAC, c.Args.CNI.MAC, args["MAC"]} {
		if mac == "" {
			continue
		}
		var err error
		if c.mac, err = net.ParseMAC(mac); err != nil || len(c.mac) != 6 || c.mac[0]&1 != 0 {
			return badConfig("mac", "%q is no hardware address of a station", mac)
		}
		break
	}
	ips := c.RuntimeConfig.IPs
	if len(ips) == 0 {
		ips = c.Args.CNI.IPs
	}
	if len(ips) == 0 && args["IP"] != "" {
		ips = strings.Split(args["IP"], ",")
	}
	for _, text := range ips {
		text, _, _ = strings.Cut(text, "/")
		a, err := netip.ParseAddr(text)
		if err != nil {
			return badConfig("ips", "%q is no address", text)
		}
		c.ips = append(c.ips, a.Unmap())
	}
	return nil
}
