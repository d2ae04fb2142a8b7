// SPDX-License-Identifier: Apache-2.0

package kinds

import "testing"

func TestHeading(t *testing.T) {
	for title, want := range map[string]string{"ADDRESSES": "Addresses", "PATH MTU": "Path MTU", "VNI": "VNI", "TX-PACKETS": "TX-packets", "MAC": "MAC", "BY VLAN": "By VLAN"} {
		if got := heading(title); got != want {
			t.Errorf("%s: %s, want %s", title, got, want)
		}
	}
}
