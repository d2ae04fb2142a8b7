// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

func TestResultsOfVersions(t *testing.T) {
	n := newNode(t)
	for version, want := range map[string]string{
		"0.3.1": `{"cniVersion":"0.3.1","interfaces":[{"name":"hs1"},{"name":"eth0","mac":"0a:4c:0a:c9:03:03","sandbox":"NETNS"}],"ips":[{"version":"4","interface":1,"address":"10.201.3.3/24","gateway":"10.201.3.1"},{"version":"6","interface":1,"address":"fd00:201:3::3/64","gateway":"fd00:201:3::1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.201.3.1"},{"dst":"::/0","gw":"fd00:201:3::1"}],"dns":{}}`,
		"1.0.0": `{"cniVersion":"1.0.0","interfaces":[{"name":"hs1"},{"name":"eth0","mac":"0a:4c:0a:c9:03:03","sandbox":"NETNS"}],"ips":[{"interface":1,"address":"10.201.3.3/24","gateway":"10.201.3.1"},{"interface":1,"address":"fd00:201:3::3/64","gateway":"fd00:201:3::1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.201.3.1"},{"dst":"::/0","gw":"fd00:201:3::1"}],"dns":{}}`,
		"1.1.0": `{"cniVersion":"1.1.0","interfaces":[{"name":"hs1","mtu":1500},{"name":"eth0","mac":"0a:4c:0a:c9:03:03","mtu":1500,"sandbox":"NETNS"}],"ips":[{"interface":1,"address":"10.201.3.3/24","gateway":"10.201.3.1"},{"interface":1,"address":"fd00:201:3::3/64","gateway":"fd00:201:3::1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.201.3.1"},{"dst":"::/0","gw":"fd00:201:3::1"}],"dns":{}}`,
	} {
		text, err := n.add("c1", map[string]any{"cniVersion": version, "runtimeConfig": map[string]any{"ips": []string{"10.201.3.3", "fd00:201:3::3/64"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(string(text), filepath.Join(n.dir, "netns-c1"), "NETNS"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", version, got, want)
		}
		n.wantOnly("c1")
		if err := n.command(api.CNIDel, "c1", nil); err != nil {
			t.Fatal(err)
		}
		n.wantOnly()
	}
}

func TestEndpointIsAsTheLink(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"mac": "02:11:22:33:44:55", "ips": []string{"10.201.3.9", "fd00:201:3::9"}}})
	var got string
	n.desired.set(func() {
		for r, o := range n.desired.objects {
			got += r.String() + " " + o.Owner + " " + string(o.Spec)
		}
	})
	want := `Endpoint/shop/web-c1/` + sumOf(ownerOf(n.params("DEL", "c1", nil)))[:10] + ` cni {"device":"hs1","addresses":["10.201.3.9","fd00:201:3::9"],"mac":"02:11:22:33:44:55","mtu":1500,"namespace":"shop","pod":"web-c1","netns":"` +
		filepath.Join(n.dir, "netns-c1") + `","containerID":"c1","network":"default"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestNothingIsLeft makes each step fail, at random or because of the desired state, and makes ADDs
// time out.
func TestNothingIsLeft(t *testing.T) {
	n := newNode(t)
	n.desired.set(func() { n.desired.refuse = func(o api.Object) bool { return true } })
	if err := n.command(api.CNIAdd, "c1", nil); err == nil || !strings.Contains(err.Message, "refused") {
		t.Errorf("error %v, want the desired state's", err)
	}
	n.wantOnly()
	n.desired.set(func() { n.desired.refuse, n.desired.pending = nil, "no programs" })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := n.Handle(ctx, n.params(api.CNIAdd, "c1", nil)); err == nil || err.Data.CNICode != api.CNITryAgain || !strings.Contains(err.Message, "no programs") {
		t.Errorf("error %+v, want the object that is not Ready, and to try again", err)
	}
	n.wantOnly()
	n.desired.set(func() { n.desired.pending = "" })

	n.links.SetFaults(0.5)
	var there []string
	for _, c := range names(60) {
		if n.command(api.CNIAdd, c, nil) == nil {
			there = append(there, c)
		}
	}
	n.links.SetFaults(0)
	if len(there) < 5 || len(there) > 55 {
		t.Errorf("%d of 60 went well: the faults are none", len(there))
	}
	for _, c := range names(60) { // a DEL follows an ADD that failed
		if n.pods[ownerOf(n.params("DEL", c, nil))] != nil && !n.pods[ownerOf(n.params("DEL", c, nil))].Done {
			if err := n.command(api.CNIDel, c, nil); err != nil {
				t.Error(err)
			}
		}
	}
	n.wantOnly(there...)
}

func TestManyAtOnce(t *testing.T) {
	n := newNode(t)
	const count = 200
	seen := map[netip.Prefix]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range names(count) {
		all.Go(func() {
			text, err := n.add(c, nil)
			r := &result{}
			if err != nil || json.Unmarshal(text, r) != nil || len(r.IPs) != 2 {
				t.Errorf("%s: %v, %s", c, err, text)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, ip := range r.IPs {
				if other := seen[ip.Address]; other != "" {
					t.Errorf("%s is %s's and %s's", ip.Address, other, c)
				}
				seen[ip.Address] = c
			}
		})
	}
	all.Wait()
	n.wantOnly(names(count)...)
	for i := range count {
		if _, ok := n.links.Links()[fmt.Sprint("hs", i+1)]; !ok {
			t.Errorf("no hs%d: names are not the lowest", i+1)
		}
	}
	if n.desired.changes >= count {
		t.Errorf("%d changes of the desired state for %d at once", n.desired.changes, count)
	}
	for _, c := range names(count) {
		all.Go(func() {
			if err := n.command(api.CNIDel, c, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n.wantOnly()
}

func TestTwice(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	if err := n.command(api.CNIAdd, "c1", nil); err == nil || err.Reason() != api.ReasonConflict {
		t.Errorf("ADD twice: %v, want a conflict", err)
	}
	n.wantOnly("c1")
	for range 2 {
		if err := n.command(api.CNIDel, "c1", nil); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	p := n.params(api.CNIDel, "unknown", nil)
	p.Netns = ""
	if _, err := n.Handle(t.Context(), p); err != nil {
		t.Errorf("DEL of what never was, without a namespace: %v", err)
	}
	n.wantOnly()
}

func TestGC(t *testing.T) {
	n := newNode(t)
	for _, c := range names(4) {
		n.mustAdd(c, nil)
	}
	n.mustAdd("other", map[string]any{"name": "another"})
	if err := n.command(api.CNIGC, "", nil); err == nil {
		t.Error("GC without a list removed everything, or so it says")
	}
	valid := []map[string]string{{"containerID": "c001", "ifname": "eth0"}, {"containerID": "c002", "ifname": "eth1"}}
	if err := n.command(api.CNIGC, "", map[string]any{"cni.dev/valid-attachments": valid}); err != nil {
		t.Fatal(err)
	}
	n.wantOnly("c001", "other")
	if err := n.command(api.CNIGC, "", map[string]any{"cni.dev/valid-attachments": nil}); err != nil {
		t.Errorf("GC where nothing is valid, as libcni says it: %v", err)
	}
	n.wantOnly("other")
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	prev := n.mustAdd("c1", nil)
	with := map[string]any{"prevResult": prev}
	if err := n.command(api.CNICheck, "c1", with); err != nil {
		t.Errorf("CHECK of an unchanged pod: %v", err)
	}
	if err := n.command(api.CNICheck, "c2", with); err == nil || err.Data.CNICode != api.CNIContainerUnknown {
		t.Errorf("CHECK of an interface that was never added: %v", err)
	}
	if err := n.command(api.CNICheck, "c1", nil); err == nil {
		t.Error("CHECK without the result is content")
	}
	wrong := *prev
	wrong.IPs = wrong.IPs[:1]
	if err := n.command(api.CNICheck, "c1", map[string]any{"prevResult": wrong}); err == nil || !strings.Contains(err.Message, "fd00:201:3::3/64") {
		t.Errorf("CHECK with another result: %v", err)
	}
	n.desired.set(func() { n.desired.pending = "no programs" })
	if err := n.command(api.CNICheck, "c1", with); err == nil || !strings.Contains(err.Message, "no programs") {
		t.Errorf("CHECK of an interface without a guard: %v", err)
	}
	n.desired.set(func() { n.desired.pending, n.desired.unseen = "", "an external change removed it" })
	if err := n.command(api.CNICheck, "c1", with); err == nil || !strings.Contains(err.Message, "an external change removed it") {
		t.Errorf("CHECK of an interface that was not verified since: %v", err)
	}
	n.desired.set(func() { n.desired.pending = "" })
	if err := n.links.Delete(t.Context(), "hs1"); err != nil {
		t.Fatal(err)
	}
	if err := n.command(api.CNICheck, "c1", with); err == nil || !strings.Contains(err.Message, "hs1") {
		t.Errorf("CHECK of what lost its link: %v", err)
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	begin := time.Now()
	n.desired.set(func() { n.desired.network = "not yet" })
	time.AfterFunc(200*time.Millisecond, func() { n.desired.set(func() { n.desired.network = "" }) })
	if err := n.command(api.CNIStatus, "", nil); err != nil || time.Since(begin) < 150*time.Millisecond {
		t.Errorf("STATUS while the daemon starts: %v after %s", err, time.Since(begin))
	}
	n.starts = begin // from now on, the daemon does not count as starting
	if err := n.command(api.CNIStatus, "", nil); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.command(api.CNIStatus, "", map[string]any{"network": "none"}); err == nil || err.Data.CNICode != api.CNINotAvailable {
		t.Errorf("STATUS without a network: %v, want code 50", err)
	}
	broken := func(what string, code int) {
		t.Helper()
		if err := n.command(api.CNIStatus, "", nil); err == nil || err.Data.CNICode != code || !strings.Contains(err.Message, "no bridge") {
			t.Errorf("STATUS of a network that is not in force, %s: %v, want code %d", what, err, code)
		}
	}
	n.desired.set(func() { n.desired.network = "no bridge" })
	broken("without pods", api.CNINotAvailable)
	n.desired.set(func() { n.desired.network = "" })
	n.mustAdd("c1", nil)
	if err := n.command(api.CNIStatus, "", nil); err != nil {
		t.Errorf("STATUS with a pod: %v", err)
	}
	n.desired.set(func() { n.desired.network = "no bridge" })
	broken("with a pod", api.CNINotConnected)
}

func TestHostPorts(t *testing.T) {
	n := newNode(t)
	ports := []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}, {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.17"}}
	n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"portMappings": ports, "ips": []string{"10.201.3.9", "fd00:201:3::9"}}})
	want := map[string]string{
		"tcp-8080-4":             `{"type":"dnat","match":{"destination":["group:cni/node-ipv4"],"protocol":["tcp"],"ports":[8080]},"to":{"addresses":["10.201.3.9"],"ports":[80]}}`,
		"tcp-8080-6":             `{"type":"dnat","match":{"destination":["group:cni/node-ipv6"],"protocol":["tcp"],"ports":[8080]},"to":{"addresses":["fd00:201:3::9"],"ports":[80]}}`,
		"udp-53-4-192.0.2.17-ip": `{"type":"dnat","priority":999,"match":{"destination":["192.0.2.17"],"protocol":["udp"],"ports":[53]},"to":{"addresses":["10.201.3.9"],"ports":[5353]}}`,
	}
	n.desired.set(func() {
		for r, o := range n.desired.objects {
			if r.Kind == api.KindNAT {
				name := r.Name[strings.LastIndex(r.Name, "/")+1:]
				if want[name] != string(o.Spec) {
					t.Errorf("%s: %s, want %s", name, o.Spec, want[name])
				}
				delete(want, name)
			}
		}
	})
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if err := n.command(api.CNIDel, "c1", nil); err != nil {
		t.Fatal(err)
	}
	if left := n.desired.Owned(api.KindNAT); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestPluginForAddresses uses a plugin that keeps its leases in files.
func TestPluginForAddresses(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	script := `#!/bin/sh
set -e
cat > ` + dir + `/config
case $CNI_COMMAND in
ADD) touch ` + dir + `/lease-$CNI_CONTAINERID-$CNI_IFNAME
echo '{"cniVersion":"1.0.0","ips":[{"address":"10.201.3.77/24"}],"routes":[{"dst":"192.0.2.0/24"}],"dns":{"nameservers":["192.0.2.53"]}}';;
DEL) rm -f ` + dir + `/lease-$CNI_CONTAINERID-$CNI_IFNAME;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "host-local"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n.usePlugins("/nonexistent", dir)
	run := func(command, container string) (json.RawMessage, *api.Error) {
		p := n.params(command, container, map[string]any{"ipam": map[string]any{"type": "host-local"}})
		p.Path = "/nonexistent" // CNI_PATH is not used
		return n.Handle(t.Context(), p)
	}
	leases := func() int {
		files, _ := filepath.Glob(filepath.Join(dir, "lease-*"))
		return len(files)
	}
	text, err := run(api.CNIAdd, "c1")
	if err != nil {
		t.Fatal(err)
	}
	const want = `"ips":[{"interface":1,"address":"10.201.3.77/24"}],"routes":[{"dst":"192.0.2.0/24","gw":"10.201.3.1"}],"dns":{"nameservers":["192.0.2.53"]}}`
	if !strings.HasSuffix(string(text), want) || leases() != 1 {
		t.Errorf("result %s, %d leases", text, leases())
	}
	config, _ := os.ReadFile(filepath.Join(dir, "config"))
	if want := `[[{"subnet":"10.201.3.0/24","rangeStart":"10.201.3.3","gateway":"10.201.3.1"}],[{"subnet":"fd00:201:3::/64","rangeStart":"fd00:201:3::3","gateway":"fd00:201:3::1"}]]`; !strings.Contains(string(config), want) {
		t.Errorf("configuration %s, want ranges %s", config, want)
	}
	if want := `"dataDir":"` + n.dir + `/host-local"`; !strings.Contains(string(config), want) {
		t.Errorf("configuration %s, want %s", config, want)
	}
	n.restart()
	if err := n.command(api.CNIDel, "c1", nil); err != nil || leases() != 0 { // uses the record
		t.Errorf("DEL: %v, %d leases left", err, leases())
	}
	n.desired.set(func() { n.desired.refuse = func(api.Object) bool { return true } })
	if _, err := run(api.CNIAdd, "c2"); err == nil || leases() != 0 {
		t.Errorf("ADD that fails: %v, %d leases left", err, leases())
	}
	n.wantOnly()
}

// TestDebiansHostLocal runs the real plugin: it assigns addresses in the network's subnets, keeps
// its data in our directory, never assigns the same address twice, and reports errors.
func TestDebiansHostLocal(t *testing.T) {
	const path = "/usr/lib/cni"
	if _, err := os.Stat(path + "/host-local"); err != nil {
		t.Skip("needs Debian's containernetworking-plugins")
	}
	n := newNode(t)
	n.usePlugins(path)
	run := func(command, container string) (string, *api.Error) {
		p := n.params(command, container, map[string]any{"ipam": map[string]any{"type": "host-local"}})
		text, err := n.Handle(t.Context(), p)
		return string(text), err
	}
	for i, container := range []string{"c1", "c2"} {
		text, err := run(api.CNIAdd, container)
		if want := fmt.Sprintf(`"address":"10.201.3.%d/24"`, 3+i); err != nil || !strings.Contains(text, want) || !strings.Contains(text, fmt.Sprintf(`"address":"fd00:201:3::%d/64"`, 3+i)) {
			t.Fatalf("%s: %v: %s, want %s", container, err, text, want)
		}
	}
	kept := func() (names []string) {
		files, err := filepath.Glob(filepath.Join(n.dir, "host-local", "*", "*3*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			names = append(names, filepath.Base(f))
		}
		return names
	}
	if got := kept(); len(got) < 2 {
		t.Errorf("kept: %v", got)
	}
	for _, container := range []string{"c1", "c2", "c2"} {
		if _, err := run(api.CNIDel, container); err != nil {
			t.Errorf("DEL of %s: %v", container, err)
		}
	}
	for _, name := range kept() {
		if !strings.HasPrefix(name, "last_reserved_ip") {
			t.Errorf("%s is left", name)
		}
	}
}

// TestHostPortTwice: a host port cannot be mapped to two ports of a pod. If a pod's record from an
// earlier version contains such a mapping, the pod is removed like any other.
func TestHostPortTwice(t *testing.T) {
	n := newNode(t)
	same := func(more ...string) (list []map[string]any) {
		for i, ip := range more {
			list = append(list, map[string]any{"hostPort": 9091, "containerPort": 80 + i, "protocol": "tcp", "hostIP": ip})
		}
		return list
	}
	for _, bad := range [][]map[string]any{same("", ""), same("", "0.0.0.0"), same("192.0.2.17", "192.0.2.17"), same("::", "")} {
		err := n.command(api.CNIAdd, "c1", map[string]any{"runtimeConfig": map[string]any{"portMappings": bad}})
		if err == nil || !strings.Contains(err.Error(), "is mapped twice") {
			t.Errorf("%v: %v", bad, err)
		}
	}
	n.mustAdd("c1", map[string]any{"runtimeConfig": map[string]any{"portMappings": same("0.0.0.0", "::", "192.0.2.17", "127.0.0.1")}})
	r := &record{Object: "pod", Addresses: []netip.Prefix{netip.MustParsePrefix("10.201.3.9/24")}, Ports: []portMapping{{HostPort: 1, ContainerPort: 2, Protocol: "tcp"}, {HostPort: 1, ContainerPort: 3, Protocol: "tcp"}}}
	if list := r.hostPorts(); len(list) != 1 {
		t.Errorf("%d objects for one port", len(list))
	}
}
