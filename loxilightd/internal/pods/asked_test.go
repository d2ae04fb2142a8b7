// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// TestRefusedWishes: a request that cannot be met is rejected, and the error names the field.
func TestRefusedWishes(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.201.3.9/24"}}})
	wish := func(key string, v any) map[string]any { return map[string]any{"runtimeConfig": map[string]any{key: v}} }
	for _, c := range []struct {
		more  map[string]any
		code  int
		field string
	}{
		{wish("mac", "00:00:00:00:00:00"), api.CNIConfigInvalid, "runtimeConfig.mac"},
		{wish("mac", "01:00:5e:00:00:01"), api.CNIConfigInvalid, "runtimeConfig.mac"},
		{map[string]any{"args": map[string]any{"cni": map[string]any{"mac": "x"}}}, api.CNIConfigInvalid, "args.cni.mac"},
		{wish("ips", []string{"x"}), api.CNIConfigInvalid, "runtimeConfig.ips"},
		{wish("ips", []string{"10.201.3.10/16"}), api.CNIConfigInvalid, "runtimeConfig.ips"},
		{wish("ips", []string{"fd00:201:3::9/128"}), api.CNIConfigInvalid, "runtimeConfig.ips"},
		{wish("ips", []string{"192.0.2.10"}), api.CNIConfigInvalid, "runtimeConfig.ips"},
		{wish("ips", []string{"10.201.3.9"}), api.CNITryAgain, "runtimeConfig.ips"},
		{wish("bandwidth", map[string]any{"ingressRate": 1}), api.CNIConfigInvalid, "runtimeConfig.bandwidth.ingressRate"},
		{wish("bandwidth", map[string]any{"egressRate": 999}), api.CNIConfigInvalid, "runtimeConfig.bandwidth.egressRate"},
	} {
		if _, err := n.add("c2", c.more); err == nil || err.Data.CNICode != c.code || err.Data.Field != c.field {
			t.Errorf("%v: %v", c.more, err)
		}
	}
	if _, err := n.add("c1", nil); err == nil || err.Data.CNICode != api.CNIEnvironmentInvalid || !strings.Contains(err.Message, "CNI_CONTAINERID") {
		t.Errorf("ADD of an existing interface: %v", err)
	}
	if err := linkError(datapath.ErrExists); err.Data.CNICode != api.CNIEnvironmentInvalid || err.Data.Field != "CNI_IFNAME" {
		t.Errorf("a device of that name: %v", err)
	}
	n.wantOnly("c1")
	n.mustAdd("c2", wish("bandwidth", map[string]any{"ingressRate": 1000, "ingressBurst": 1}))
}

// TestMACTaken: an Endpoint of another owner already has the MAC.
func TestMACTaken(t *testing.T) {
	taken := api.Errorf(api.ReasonConflict, "MAC belongs to another").At("Endpoint/a", "spec.mac")
	c := &conf{mac: []byte{2, 1, 2, 3, 4, 5}, macFrom: "runtimeConfig.mac"}
	if err := c.blame(objectError(taken)); err.Data.CNICode != api.CNIConfigInvalid || err.Data.Field != "runtimeConfig.mac" || err.Reason() != api.ReasonConflict {
		t.Errorf("it is %v", err)
	}
	if err := (&conf{}).blame(objectError(taken)); err.Data.CNICode != api.CNIFailed {
		t.Errorf("not requested: %v", err)
	}
}
