// SPDX-License-Identifier: Apache-2.0

package cli

import "testing"

// TestProtocolPort: a protocol may be a number too.
func TestProtocolPort(t *testing.T) {
	for _, c := range []struct {
		text, protocol string
		port           int
	}{{"tcp/22", "tcp", 22}, {"22/tcp", "tcp", 22}, {"icmp", "icmp", 0}, {"17/4660", "17", 4660}} {
		if protocol, port, err := protocolPort(c.text); protocol != c.protocol || port != c.port || err != nil {
			t.Errorf("%s: %q, %d, %v", c.text, protocol, port, err)
		}
	}
	for _, text := range []string{"tcp/", "/", "tcp/udp"} {
		if _, _, err := protocolPort(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
