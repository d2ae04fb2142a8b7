// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestStateLost deletes the desired state while pods run. As soon as their network is configured
// again, more pods can be attached, including pods with host ports.
func TestStateLost(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	withPort := func(id string, port int) *pod {
		p := s.newPod(id)
		p.rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}
		return p
	}
	server := withPort("server", 8080)
	if err := s.tryAdd(list, server); err != nil {
		t.Fatal(err)
	}
	server.ServeTCP(t, ":80", "server")
	s.outside.ServeTCP(t, "192.0.2.77:80", "outside")
	s.outside.Run(t, "ip", "route", "del", "10.73.3.0/24") // no answer without masquerade

	lose := func(paths ...string) {
		t.Helper()
		s.Kill()
		for _, p := range paths {
			if err := os.RemoveAll(filepath.Join(s.StateDir(), p)); err != nil {
				t.Fatal(err)
			}
		}
		s.Start()
		s.Apply(siteObjects)
		s.LLCLI("wait", "PodNetwork", "default")
	}
	attached := func(p *pod) {
		t.Helper()
		if err := s.tryAdd(list, p); err != nil {
			t.Fatalf("ADD %s: %v", p.rt.ContainerID, err)
		}
		if got, err := testtraffic.TalkTCP(p.NS, "", "192.0.2.77:80", []byte("hello")); err != nil || got != "outside" {
			t.Errorf("%s to the outside: %q, %v", p.rt.ContainerID, got, err)
		}
	}
	lose("state.db") // the pods are known, and with them their ports
	attached(withPort("second", 8082))
	if got, err := testtraffic.TalkTCP(s.outside, "", "192.0.2.1:8080", []byte("hello")); err != nil || got != "server" {
		t.Errorf("the port of the first pod: %q, %v", got, err)
	}
	lose("state.db", "pods", "addresses") // host ports stay in force
	attached(s.newPod("third"))
}

// TestRecordsTorn truncates the pods' records while the daemon is down. The pods keep working, with
// their host ports, the next pod gets a different address, and the status reports the damage.
func TestRecordsTorn(t *testing.T) {
	s := newSite(t)
	list := s.list("1.0.0", nil)
	server := s.newPod("server")
	server.rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	if err := s.tryAdd(list, server); err != nil {
		t.Fatal(err)
	}
	server.ServeTCP(t, ":80", "server")
	s.Kill()
	records, err := filepath.Glob(filepath.Join(s.StateDir(), "pods", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %q, %v", records, err)
	}
	if err := os.Truncate(records[0], 100); err != nil {
		t.Fatal(err)
	}
	s.Start()
	if err := s.tryAdd(list, s.newPod("second")); err != nil { // after the records were taken over
		t.Fatal(err)
	}
	if got, err := testtraffic.TalkTCP(s.outside, "", "192.0.2.1:8080", []byte("hello")); err != nil || got != "server" {
		t.Errorf("the port of the pod: %q, %v", got, err)
	}
	if out := s.LLCLI("status"); !strings.Contains(out, "were damaged or lost for") || !strings.Contains(out, "server/eth0") {
		t.Errorf("the status does not report it:\n%s", out)
	}
	s.del(list, server)
	if out := s.LLCLI("status"); strings.Contains(out, "damaged") {
		t.Errorf("the pod is deleted, and the status still reports it:\n%s", out)
	}
}
