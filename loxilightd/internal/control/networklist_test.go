// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
)

// fakeNetwork contains how many routes there are in the host's and in the switch's namespace.
type fakeNetwork struct{ host, inSwitch int }

func (f fakeNetwork) List(_ context.Context, v datapath.NetworkView, inSwitch bool, skip, limit int) (list []datapath.NetworkEntry, more bool, err error) {
	count := f.host
	if inSwitch {
		count = f.inSwitch
	}
	if v != datapath.ViewRoutes {
		return nil, false, nil
	}
	for i := skip; i < count; i++ {
		if len(list) == limit {
			return list, true, nil
		}
		list = append(list, datapath.NetworkEntry{Origin: "loxilight", Object: fmt.Sprint("r", i), Route: &datapath.Route{
			Prefix:   netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32),
			NextHops: []datapath.NextHop{{Via: netip.MustParseAddr("192.0.2.1"), Device: "eth0", Weight: 1}},
		}})
	}
	return list, false, nil
}

// TestNetworkList pages through many entries: each is returned once, in order.
func TestNetworkList(t *testing.T) {
	h := newHarness(t)
	h.wantError("network.list", `{"what":"routes"}`, 6, "", "", "does not report")
	h.Network = fakeNetwork{host: 3000, inSwitch: 1200}
	for _, c := range []struct {
		params     string
		count      int
		pagesAtMax int
	}{
		{`"what":"routes"`, 4200, 20},
		{`"what":"routes","netns":"switch"`, 1200, 6},
		{`"what":"routes","limit":700`, 4200, 20},
		{`"what":"fdb"`, 0, 1},
	} {
		seen, pages, from := 0, 0, ""
		for {
			r := result[api.NetworkListResult](h, "network.list", fmt.Sprintf(`{%s,"continue":%q}`, c.params, from))
			pages++
			for i, e := range r.Items {
				netns, number := "host", seen
				if e.Netns == "switch" {
					netns = "switch"
					if c.count == 4200 {
						number = seen - 3000
					}
				}
				if e.Netns != netns || e.Object != fmt.Sprint("Route/r", number) {
					t.Fatalf("%s: page %d entry %d: %+v, want number %d", c.params, pages, i, e, number)
				}
				seen++
			}
			if from = r.Continue; from == "" {
				break
			}
		}
		if seen != c.count || pages > c.pagesAtMax {
			t.Errorf("%s: %d entries in %d pages, want %d", c.params, seen, pages, c.count)
		}
	}
	h.wantError("network.list", `{"what":"sausages"}`, 1, "", "what", "is not one of bridges")
	h.wantError("network.list", `{"what":"fdb","netns":"moon"}`, 1, "", "netns", "moon")
	h.wantError("network.list", `{"what":"fdb","continue":"elsewhere"}`, 1, "", "continue", "elsewhere")
	h.wantError("network.list", `{"what":"fdb","limit":-1}`, 1, "", "limit", "negative")
}
