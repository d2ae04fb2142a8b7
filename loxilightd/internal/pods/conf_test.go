// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestWrongTypes: errors in a configuration are reported in JSON terms.
func TestWrongTypes(t *testing.T) {
	for _, c := range []struct{ config, message string }{
		{`[]`, "config: want an object, not a list"},
		{`{"mtu":`, "config: is not valid JSON: unexpected end of JSON input, at byte 7"},
		{`{"name":7}`, "name: want a string, not a number"},
		{`{"mtu":"1500"}`, "mtu: want a whole number, not a string"},
		{`{"mtu":1.5}`, "mtu: want a whole number, not 1.5"},
		{`{"network":["a"]}`, "network: want a string, not a list"},
		{`{"runtimeConfig":7}`, "runtimeConfig: want an object, not a number"},
		{`{"runtimeConfig":{"ips":"10.7.1.9"}}`, "runtimeConfig.ips: want a list, not a string"},
		{`{"runtimeConfig":{"portMappings":[{"hostPort":"80"}]}}`, "runtimeConfig.portMappings.hostPort: want a whole number, not a string"},
		{`{"runtimeConfig":{"bandwidth":{"ingressRate":-1}}}`, "runtimeConfig.bandwidth.ingressRate: want a whole number that is not negative, not -1"},
		{`{"ipam":true}`, "ipam: want an object, not true or false"},
		{`{"ipam":{"type":7}}`, "ipam.type: want a string, not a number"},
		{`{"ipam":{"routes":{}}}`, "ipam.routes: want a list, not an object"},
		{`{"ipam":{"routes":[{"dst":7}]}}`, "ipam.routes.dst: want a string, not a number"},
		{`{"ipam":{"routes":[{"dst":"10.9.0.0"}]}}`, `ipam: "10.9.0.0" is not a valid address with a prefix length`},
		{`{"ipam":{"routes":[{"dst":"10.9.0.0/16","gw":"x"}]}}`, `ipam: "x" is not a valid address`},
		{`{"prevResult":{"ips":[{"interface":"0"}]}}`, "prevResult.ips.interface: want a whole number, not a string"},
		{`{"cni.dev/valid-attachments":{}}`, "want a list, not an object"},
	} {
		config := c.config
		if strings.HasPrefix(config, "{") && json.Valid([]byte(config)) && !strings.Contains(config, `"name"`) {
			config = `{"cniVersion":"1.1.0","name":"pods",` + config[1:]
		}
		_, err := parseConf(&api.CNIParams{Command: api.CNIAdd, ContainerID: "c", IfName: "eth0", Netns: "/x", Config: []byte(config)})
		if err == nil || err.Data.CNICode != api.CNIDecodingFailed || !strings.Contains(err.Message, c.message) {
			t.Errorf("%s: %v; want code 6, %s", config, err, c.message)
		}
	}
}

// TestLongContainerID: an id that is too long for an Endpoint is rejected immediately; a DEL with
// that id succeeds.
func TestLongContainerID(t *testing.T) {
	n := newNode(t)
	long := strings.Repeat("c", 254)
	p := n.params(api.CNIDel, long, nil)
	for _, command := range []string{api.CNIAdd, api.CNICheck} {
		p.Command = command
		if _, err := n.Handle(t.Context(), p); err == nil || err.Data.CNICode != api.CNIEnvironmentInvalid || !strings.Contains(err.Message, "CNI_CONTAINERID: has 254 bytes, at most 253") {
			t.Errorf("%s: %v", command, err)
		}
	}
	p.Command = api.CNIDel
	if _, err := n.Handle(t.Context(), p); err != nil {
		t.Errorf("DEL: %v", err)
	}
}
