// SPDX-License-Identifier: Apache-2.0

package endure

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// backendsEach is the number of backends of each Service.
const backendsEach = 16

// TestManyServices: with as many Services and backends as the tables have room for at most, the daemon
// is killed and started again. Before, between and after, Services answer.
func TestManyServices(t *testing.T) {
	testnet.RequireRoot(t)
	services := 300
	if long() {
		services = 65_536
	}
	s := &site{
		t: t, family: families[0],
		clients: testnet.New(t, "clients"), node: testnet.New(t, "node"), backend: testnet.New(t, "backend"),
	}
	testnet.Veth(t, testnet.Port{NS: s.clients, Name: "eth0", Addrs: []string{"192.0.2.17/24"}}, testnet.Port{NS: s.node, Name: "in0", Addrs: []string{"192.0.2.1/24"}})
	testnet.Veth(t, testnet.Port{NS: s.backend, Name: "eth0", Addrs: []string{"10.0.1.2/24"}}, testnet.Port{NS: s.node, Name: "p1", Addrs: []string{"10.0.1.1/24"}})
	s.clients.Route(t, "default", "192.0.2.1")
	s.backend.Route(t, "default", "10.0.1.1")
	s.backend.Run(t, "ip", "route", "add", "local", "10.64.0.0/10", "dev", "lo")
	s.node.Route(t, "10.64.0.0/10", "10.0.1.2")
	s.node.Forward(t)
	s.backend.ServeTCP(t, "0.0.0.0:80", "backend")
	s.Daemon = testdaemon.New(t, s.node, programs, fmt.Sprintf("tables: {connections: 65536, services: %d, backends: %d}", services, services*backendsEach))
	s.Start()
	s.Apply("kind: Interface\nname: in0\nspec: {device: in0}\n---\nkind: Interface\nname: p1\nspec: {device: p1, role: port}\n")

	begin := time.Now()
	for first := 0; first < services; first += 500 {
		var objects []api.Object
		for i := first; i < min(services, first+500); i++ {
			objects = append(objects, manyService(t, i))
		}
		if _, err := s.Client.Apply(t.Context(), api.ApplyParams{Objects: objects}); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitReady()
	t.Logf("%d Services with %d backends each: in force after %s", services, backendsEach, time.Since(begin).Round(time.Millisecond))
	s.askSome(services)
	s.Kill()
	s.askSome(services)
	begin = time.Now()
	s.Start()
	s.awaitReady()
	t.Logf("started again: all are in force after %s", time.Since(begin).Round(time.Millisecond))
	s.askSome(services)
}

// manyService returns Service i.
func manyService(t *testing.T, i int) api.Object {
	t.Helper()
	var backends []api.Backend
	for j := range backendsEach {
		n := i*backendsEach + j
		backends = append(backends, api.Backend{Address: fmt.Sprintf("10.%d.%d.%d:80", 64+n>>16, n>>8&255, n&255)})
	}
	spec, err := json.Marshal(map[string]any{"frontends": []string{manyFrontend(i) + "/tcp"}, "backends": backends})
	if err != nil {
		t.Fatal(err)
	}
	return api.Object{Kind: api.KindService, Name: fmt.Sprint("s", i), Spec: spec}
}

func manyFrontend(i int) string { return fmt.Sprintf("198.18.%d.%d:80", i>>8, i&255) }

// awaitReady waits until all objects are Ready.
func (s *site) awaitReady() {
	s.t.Helper()
	testnet.Eventually(s.t, 2*time.Minute, "all objects are Ready", func() bool {
		status, err := s.Client.Status(s.t.Context())
		return err == nil && len(status.NotReady) == 0 && status.Objects[api.KindService] > 0
	})
}

// askSome connects to some Services.
func (s *site) askSome(services int) {
	s.t.Helper()
	for range 50 {
		i := rand.IntN(services)
		c, err := s.clients.Dial("tcp", "", manyFrontend(i), 3*time.Second)
		if err != nil {
			s.t.Errorf("Service %d: %v", i, err)
			continue
		}
		c.Close()
	}
}
