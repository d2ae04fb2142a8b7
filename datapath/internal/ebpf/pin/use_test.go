// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"os"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestUseStopsOlderVersions: while the pins have a use that an older version does not support, that
// version refuses them, and names the version that pinned them.
func TestUseStopsOlderVersions(t *testing.T) {
	testnet.RequireRoot(t)
	pins := testnet.BPFFS(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(os.Mkdir(Dir(pins), 0o700))
	ok(WriteOrigin(Dir(pins), Origin{Version: "2.5"}))
	refused := func(supported ...string) string {
		t.Helper()
		before := uses
		uses = supported
		defer func() { uses = before }()
		text, err := otherLayout(pins)
		ok(err)
		return text
	}
	for _, on := range []bool{false, true, true, false, false} {
		ok(SetUse(pins, UsePolicies, on))
		if text := refused(UsePolicies); text != "" {
			t.Errorf("in use %t: a version with policies refuses the pins: %s", on, text)
		}
		if text := refused(); (text != "") != on || on && (!strings.Contains(text, "1+policies") || !strings.Contains(text, "version 2.5")) {
			t.Errorf("in use %t: a version without policies: %q", on, text)
		}
	}
}
