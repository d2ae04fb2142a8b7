// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
)

// unused returns an address on which no process listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestAPIServerIsReachedWithoutItsService: neither the configured address nor the Service
// leads to an API server. The agent knows the servers' own addresses from the daemon and, when they
// change, from the cluster.
func TestAPIServerIsReachedWithoutItsService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := netip.MustParseAddrPort(strings.TrimPrefix(w.kube.URL, "http://"))
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindService, Name: "default/kubernetes:https", Owner: nodes.Owner, Labels: map[string]string{"namespace": "default", "service": "kubernetes"},
		Spec: raw(t, api.ServiceSpec{Frontends: []string{"10.96.0.1:443/tcp"}, Backends: []api.Backend{{Address: first.String()}}}),
	}}}); err != nil {
		t.Fatal(err)
	}
	second := testkube.New(t)
	second.Set(node("n1", "192.0.2.1", "10.244.1.0/24"), node("n3", "192.0.2.3", "10.244.3.0/24"))
	apiServer(second)
	both := slice("default", "kubernetes", "kubernetes", "127.0.0.1")
	port := int32(netip.MustParseAddrPort(strings.TrimPrefix(second.URL, "http://")).Port())
	both.Ports[0].Port = &port
	w.kube.Set(both)
	second.Set(both.DeepCopy())
	w.url = "http://" + unused(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	none := slice("default", "kubernetes", "kubernetes")
	w.kube.Set(none)
	eventually(t, "the Service has no backend", func() bool { return backends(w.daemon.has()["Service/default/kubernetes"]) == 0 })
	begin := time.Now()
	w.kube.Stop()
	w.inStep(api.KindPeer, "n3")
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("another API server was found after %s", took)
	}
	w.kube.Start() // for the end of the test
	fmt.Fprintln(w.log, "in step with the second API server after", time.Since(begin))
}

// TestServersOfBefore: servers that were down are tried only if all were down.
func TestServersOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := New(Options{Config: w.config, NodeName: w.name, Kube: w.client(), Daemon: w.daemon.Client, Log: slog.Default()})
	for _, test := range []struct {
		states [2]string
		want   []string
	}{
		{[2]string{"", ""}, []string{"192.0.2.1:6443", "192.0.2.2:6443"}},
		{[2]string{"down", "draining"}, []string{"192.0.2.2:6443"}},
		{[2]string{"down", "down"}, []string{"192.0.2.1:6443", "192.0.2.2:6443"}},
	} {
		spec := api.ServiceSpec{Frontends: []string{"10.96.0.1:443/tcp"}}
		for i, state := range test.states {
			spec.Backends = append(spec.Backends, api.Backend{Address: fmt.Sprintf("192.0.2.%d:6443", i+1), State: state})
		}
		if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
			Kind: api.KindService, Name: "default/kubernetes:https", Owner: nodes.Owner, Labels: map[string]string{"namespace": "default", "service": "kubernetes"},
			Spec: raw(t, spec),
		}}}); err != nil {
			t.Fatal(err)
		}
		if got := a.askBefore(); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.states, got, test.want)
		}
	}
}
