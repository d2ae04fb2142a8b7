// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestAddressesFromElsewhere: an address that a plugin assigns must be reachable. A single address
// without a gateway is accepted without a check.
func TestAddressesFromElsewhere(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	for ips, ok := range map[string]bool{
		`{"address":"192.168.77.5/24","gateway":"192.168.77.1"}`: false,
		`{"address":"fd00:99::5/64","gateway":"fd00:99::1"}`:     false,
		`{"address":"10.201.3.77/24","gateway":"10.201.3.1"}`:    true,
		`{"address":"192.168.77.5/32"}`:                          true,
		`{"address":"192.168.77.5/32","gateway":"10.201.3.1"}`:   true,
		`{"address":"192.168.77.5/24","gateway":"192.0.2.17"}`:   true,
	} {
		script := "#!/bin/sh\ncat > /dev/null\ncase $CNI_COMMAND in\nADD) touch " + dir + "/lease; echo '{\"cniVersion\":\"1.0.0\",\"ips\":[" + ips + "]}';;\nDEL) rm " + dir + "/lease;;\nesac\n"
		if err := os.WriteFile(filepath.Join(dir, "other"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		p := n.params(api.CNIAdd, "c1", map[string]any{"ipam": map[string]any{"type": "other"}})
		n.usePlugins(dir)
		_, err := n.Handle(t.Context(), p)
		switch {
		case ok && err != nil:
			t.Errorf("%s: %v", ips, err)
		case !ok && (err == nil || err.Data.Field != "ipam.ranges" || err.Data.CNICode != api.CNIConfigInvalid || !strings.Contains(err.Message, "10.201.3.0/24")):
			t.Errorf("%s: %v", ips, err)
		}
		if err := n.command(api.CNIDel, "c1", nil); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "lease")); err == nil {
			t.Errorf("%s: it was not given back", ips)
		}
	}
	n.wantOnly()
}
