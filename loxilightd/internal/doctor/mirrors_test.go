// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

func mirrorObject(name, source, to, status string) *api.Object {
	return &api.Object{
		Kind: api.KindMirror, Name: name, Spec: []byte(fmt.Sprintf(`{"source":{%s},"to":{%s}}`, source, to)), Status: []byte(status),
	}
}

// TestMirrors: targets without a link are found if no daemon runs, and lost copies if one does.
func TestMirrors(t *testing.T) {
	const eth, pod, inSwitch = `"interface":"eth"`, `"endpoint":"pod"`, `"interface":"sw"`
	r := newRig(t)
	r.machine("/sys/class/net/mon0/operstate", "up")
	r.machine("/sys/class/net/dummy0/operstate", "unknown")
	r.machine("/sys/class/net/mon1/operstate", "down")
	r.machine("/sys/class/net/mon2/operstate", "lowerlayerdown")
	objects := []*api.Object{
		{Kind: api.KindInterface, Name: "eth", Spec: []byte(`{"device":"eth0"}`)}, {Kind: api.KindInterface, Name: "sw", Spec: []byte(`{"device":"hs9","netns":"switch"}`)},
		mirrorObject("up", eth, `"device":"mon0"`, `{"counters":{"packets":7,"bytes":9,"drops":0}}`),
		mirrorObject("dummy", eth, `"device":"dummy0"`, `{}`),
		mirrorObject("down", eth, `"device":"mon1"`, `{"counters":{"packets":7,"bytes":9,"drops":3}}`),
		mirrorObject("lower", `"service":"web"`, `"device":"mon2"`, ``),
		mirrorObject("gone", eth, `"device":"mon3"`, ``),
		mirrorObject("pod", pod, `"device":"mon3"`, ``), mirrorObject("switch", inSwitch, `"device":"mon3"`, ``),
		mirrorObject("named", `"service":"web"`, `"device":"mon3","netns":"switch"`, ``),
		mirrorObject("peer", eth, `"peer":"far","vni":7`, ``),
	}
	for _, tt := range []struct {
		name    string
		running bool
		change  func(*config.Config)
		want    []string
	}{
		{"stopped", false, func(c *config.Config) { c.SwitchNamespace = "loxilight" }, []string{
			"mirrors.drops Mirror/down", "mirrors.target Mirror/down", "mirrors.target Mirror/gone", "mirrors.target Mirror/lower"}},
		{"one namespace", false, func(c *config.Config) { c.SwitchNamespace = "host" }, []string{
			"mirrors.drops Mirror/down", "mirrors.target Mirror/down", "mirrors.target Mirror/gone", "mirrors.target Mirror/lower",
			"mirrors.target Mirror/named", "mirrors.target Mirror/pod", "mirrors.target Mirror/switch"}},
		{"running", true, func(c *config.Config) { c.SwitchNamespace = "loxilight" }, []string{"mirrors.drops Mirror/down"}},
	} {
		x := &examiner{Options: r.o, daemon: daemon{locked: tt.running}}
		tt.change(x.Config)
		for _, o := range objects {
			x.desired.take(o)
		}
		if len(x.desired.objects) != len(objects) {
			t.Fatalf("%d of %d objects were understood", len(x.desired.objects), len(objects))
		}
		x.checkMirrors()
		var got []string
		for _, f := range x.findings {
			got = append(got, f.ID+" "+f.Object)
		}
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, got, tt.want)
		}
	}
}
