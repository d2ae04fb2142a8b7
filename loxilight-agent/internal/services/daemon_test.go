// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// daemon starts a real loxilightd with a fake data plane.
func daemon(t *testing.T) *client.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "ll") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	program := filepath.Join(dir, "loxilightd")
	if built := os.Getenv("LOXILIGHT_BIN"); built != "" {
		program = filepath.Join(built, "loxilightd")
	} else if out, err := exec.Command("go", "build", "-o", program, "github.com/loxilight/loxilight/loxilightd").CombinedOutput(); err != nil {
		t.Fatalf("build loxilightd: %v\n%s", err, out)
	}
	config := "datapath: {backend: fake}\nlog: {level: warn}\nswitch: {namespace: host}\n"
	for key, sub := range map[string]string{"runDir": "run", "stateDir": "state", "objectDir": "conf.d", "pinDir": "pins"} {
		config += fmt.Sprintf("%s: %s\n", key, filepath.Join(dir, sub))
	}
	if err := os.WriteFile(filepath.Join(dir, "loxilightd.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", filepath.Join(dir, "loxilightd.yaml"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Socket: filepath.Join(dir, "run/control.sock")})
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its state is no longer needed
		_ = cmd.Wait()         // killed
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // no call is in progress
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := c.Status(t.Context()); err == nil {
			return c
		} else if time.Now().After(deadline) {
			t.Fatalf("loxilightd does not answer: %v", err)
		}
	}
}

// TestDaemonTakesAll: the daemon accepts the objects of any service, in one transaction that
// replaces the objects of another service.
func TestDaemonTakesAll(t *testing.T) {
	d := daemon(t)
	ctx := context.WithoutCancel(t.Context())
	taken := 0
	rapidCheck(t, func(draws drawer) {
		w := draw(draws)
		objects := TranslateService(thisNode(), w.service, w.slices, nil).Objects
		result, err := d.Replace(ctx, api.ReplaceParams{Owner: Owner, Kinds: []string{api.KindService}, Objects: objects})
		if err != nil {
			draws.Fatalf("%v\n%s", err, render(t, objects))
		}
		taken += result.Summary[api.ActionCreated] + result.Summary[api.ActionUpdated]
		again, err := d.Replace(ctx, api.ReplaceParams{Owner: Owner, Kinds: []string{api.KindService}, Objects: objects})
		if err != nil || again.Summary[api.ActionUnchanged] != len(objects) {
			draws.Fatalf("once more: %v, %v", again, err)
		}
	})
	if taken < 100 && !testing.Short() {
		t.Errorf("hardly any object was new: %d", taken)
	}
	n := thisNode()
	s := change(clusterIP(), dualStack, nodePort, externalLocal, internalLocal)
	s.Namespace, s.Name, s.Spec.Ports[0].Name = strings.Repeat("n", 63), strings.Repeat("s", 63), strings.Repeat("p", 63)
	loadBalancer("2001:db8:113::20")(s)
	n.Pool = func(netip.Addr) (bool, bool) { return true, true }
	objects := TranslateService(n, s, nil, nil).Objects
	if _, err := d.Replace(ctx, api.ReplaceParams{Owner: Owner, Kinds: []string{api.KindService}, Objects: objects}); err != nil || len(objects) != 4 {
		t.Errorf("the longest of names: %v\n%s", err, render(t, objects))
	}
}
