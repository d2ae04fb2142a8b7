// SPDX-License-Identifier: Apache-2.0

package pkg

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/testnet"
)

// The state that outlives the machine, which is started with it and loses power three times.
const (
	bootVariable = "LOXILIGHT_BOOT" // number of this boot, starting at 1
	disk         = share + "/disk"
	stateDir     = "/var/lib/loxilight"
)

const rebootPods = 50

const podObjects = `
kind: PodNetwork
name: default
spec: {subnets: [10.78.0.0/24, "fd78::/64"]}
`

// TestHardReboot: a machine with fifty pods loses power and boots again, three times. No pod
// that has ended keeps an address, a device or anything else, and the runtime's list determines
// which pods live.
func TestHardReboot(t *testing.T) {
	boot := number("BOOT", 0)
	if os.Getenv(machineVariable) == "" || boot == 0 {
		t.Skip("needs a machine of its own that is cut off: make test-package")
	}
	for _, dir := range []string{disk, stateDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "--bind", disk, stateDir)
	if err := os.MkdirAll("/etc/loxilight/conf.d", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, "/etc/loxilight/conf.d/50-pods.yaml", podObjects)
	left, err := filepath.Glob(disk + "/pods/*.json")
	if want := min(boot-1, 1) * rebootPods; err != nil || len(left) != want {
		t.Fatalf("the disk has %d records of previous pods, %v; want %d", len(left), err, want)
	}
	install(t, deb)
	start(t)
	ready(t)
	expectLive(t, "after the start")

	// Some containers have the names of earlier ones, others have new names.
	var all []string
	for i := range rebootPods {
		all = append(all, fmt.Sprintf("boot-%d-pod-%d", boot*(i%2), i))
	}
	addresses := map[string]string{}
	for _, id := range all {
		run(t, "ip", "netns", "add", id)
		for _, a := range podAddresses(t, cniCommand(t, "ADD", id, "")) {
			if other := addresses[a]; other != "" {
				t.Errorf("%s has the address %s of %s", id, a, other)
			}
			addresses[a] = id
		}
	}
	expectLive(t, "with pods", all...)

	// The runtime knows only half of the containers: the others were lost.
	live := all[:rebootPods/2]
	var valid []string
	for _, id := range live {
		valid = append(valid, fmt.Sprintf(`{"containerID":%q,"ifname":"eth0"}`, id))
	}
	cniCommand(t, "GC", "", `,"cni.dev/valid-attachments":[`+strings.Join(valid, ",")+`]`)
	expectLive(t, "after GC", live...)
	for _, id := range all[rebootPods/2:] {
		cniCommand(t, "ADD", id, "")
	}
	expectLive(t, "when the machine is cut off", all...)
}

// cniCommand runs the plugin as a runtime does.
func cniCommand(t *testing.T, command, id, more string) []byte {
	t.Helper()
	cmd := exec.Command("/opt/cni/bin/loxilight-cni")
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_PATH=/opt/cni/bin")
	if id != "" {
		cmd.Env = append(cmd.Env, "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/"+id)
	}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"pods","type":"loxilight-cni"` + more + `}`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", command, id, err, out)
	}
	return out
}

func podAddresses(t *testing.T, result []byte) (all []string) {
	t.Helper()
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(result, &r); err != nil || len(r.IPs) != 2 {
		t.Fatalf("result %s: %v", result, err)
	}
	for _, ip := range r.IPs {
		all = append(all, ip.Address.Addr().String())
	}
	return all
}

// expectLive fails the test unless exactly these containers have addresses, Endpoints, links and
// records.
func expectLive(t *testing.T, when string, ids ...string) {
	t.Helper()
	c, err := client.New(client.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := slices.Sorted(slices.Values(ids))
	check := func(what string, got []string) {
		t.Helper()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s, %s: of %d pods %q, want %d", when, what, len(got), got, len(want))
		}
	}
	endpoints := func() (got []string) {
		for o, err := range c.List(t.Context(), api.ListParams{Kind: api.KindEndpoint}) {
			if err != nil {
				t.Fatalf("%s: endpoints: %v", when, err)
			}
			var spec api.EndpointSpec
			if err := json.Unmarshal(o.Spec, &spec); err != nil {
				t.Fatal(err)
			}
			got = append(got, spec.ContainerID)
		}
		return got
	}
	// Leftovers are removed when the daemon is ready, or soon after.
	testnet.Eventually(t, patience(), when+", nobody else has an Endpoint", func() bool { return len(endpoints()) <= len(want) })
	check("Endpoints", endpoints())
	var leases api.AddressesListResult
	if err := c.Call(t.Context(), api.MethodAddressesList, api.AddressesListParams{}, &leases); err != nil || leases.Continue != "" {
		t.Fatalf("%s: addresses: %v", when, err)
	}
	var got []string
	for _, l := range leases.Items {
		got = append(got, l.ContainerID)
	}
	check("addresses", got)
	got = nil
	files, err := filepath.Glob(stateDir + "/pods/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		var r struct{ ContainerID string }
		if err := json.Unmarshal([]byte(read(t, f)), &r); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		got = append(got, r.ContainerID)
	}
	check("records", got)
	links := strings.Count(run(t, "ip", "-n", "loxilight", "-o", "link", "show", "type", "veth"), " alias loxilight default pod ")
	if links != len(want) {
		t.Errorf("%s: %d links, want %d", when, links, len(want))
	}
}
