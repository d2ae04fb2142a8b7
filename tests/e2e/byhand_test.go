// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// TestByHand sends the requests of docs/api.md with nanocat: nothing else is needed to create a
// service and to list its connections.
func TestByHand(t *testing.T) {
	s := newSite(t)
	if _, err := exec.LookPath("nanocat"); err != nil {
		t.Skip("nanocat is not installed (.ci/setup test installs it)")
	}
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(ask\\(\\) .*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/api.md has no example that begins with ask()")
	}
	script := strings.NewReplacer(
		"/run/loxilight/control.sock", s.Socket,
		`"device":"eth0"`, `"device":"in0"`, `"device":"eth1"`, `"device":"p1"`,
	).Replace(string(block[1]))
	s.Start()
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	s.typed(script)
	c, err := s.client.Dial("tcp", "192.0.2.17:4660", vip4+":80", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // no longer needed
	replies := s.typed(script)
	var service api.Object
	var status api.ServiceStatus
	var list api.ConnectionsListResult
	for _, v := range []struct {
		raw  []byte
		into any
	}{{replies[1].Result, &service}, {replies[2].Result, &list}} {
		if err := json.Unmarshal(v.raw, v.into); err != nil {
			t.Fatalf("%v in %s", err, v.raw)
		}
	}
	if err := json.Unmarshal(service.Status, &status); err != nil || status.State != api.StateReady {
		t.Errorf("status of the service = %s, %v; want Ready", service.Status, err)
	}
	if len(list.Items) != 1 {
		t.Fatalf("%d connections, want 1: %s", len(list.Items), replies[2].Result)
	}
	got := list.Items[0]
	if got.Original != (api.Tuple{Source: "192.0.2.17:4660", Destination: "198.51.100.10:80"}) ||
		got.State != "established" || got.Backend != "10.0.1.2:8080" || got.Service != "web" {
		t.Errorf("connection = %s", replies[2].Result)
	}
}

// typed runs the example and returns its three answers.
func (s *site) typed(script string) (replies []api.Reply) {
	s.t.Helper()
	out := s.node.Run(s.t, "sh", "-euc", script)
	for line := range strings.Lines(out) {
		var r api.Reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			s.t.Fatalf("%v in %s", err, out)
		}
		if r.Error != nil {
			s.t.Fatalf("answered %v", r.Error)
		}
		replies = append(replies, r)
	}
	if len(replies) != 3 {
		s.t.Fatalf("%d answers to the example, want 3: %s", len(replies), out)
	}
	return replies
}
