// SPDX-License-Identifier: Apache-2.0

package servicehealth

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

var web = services.Key{Namespace: "shop", Name: "web"}

// start makes a server whose node is healthy while the flag is set.
func start(t *testing.T) (s *Server, healthy *atomic.Bool, failures chan string) {
	healthy, failures = &atomic.Bool{}, make(chan string, 100)
	healthy.Store(true)
	s = New(healthy.Load, func(k services.Key, err error) { failures <- k.String() + ": " + err.Error() }, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	s.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	return s, healthy, failures
}

// freePort returns a port on which no process listens.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := occupy(t, "127.0.0.1:0")
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	_ = l.Close()
	return port
}

func occupy(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// ask requests the state, and returns status, weight and body, or an error.
func ask(host string, port uint16) (int, string, string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + netip.AddrPortFrom(netip.MustParseAddr(host), port).String() + "/anything")
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		return 0, "", "", io.ErrUnexpectedEOF
	}
	return r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"), strings.TrimSpace(string(body)), err
}

func expect(t *testing.T, port uint16, status int, weight, body string) {
	t.Helper()
	gotStatus, gotWeight, gotBody, err := ask("127.0.0.1", port)
	if err != nil || gotStatus != status || gotWeight != weight || gotBody != body {
		t.Errorf("port %d: %d %q %s, %v; want %d %q %s", port, gotStatus, gotWeight, gotBody, err, status, weight, body)
	}
}

func shut(t *testing.T, host string, port uint16) {
	t.Helper()
	if status, _, _, err := ask(host, port); err == nil {
		t.Errorf("%s port %d still answers: %d", host, port, status)
	}
}

func TestAnswers(t *testing.T) {
	s, healthy, failures := start(t)
	port := freePort(t)
	s.Set(web, &services.Health{Port: port, Local: 2})
	expect(t, port, 200, "2", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`)
	s.Set(web, &services.Health{Port: port, Local: 0})
	expect(t, port, 503, "0", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}`)
	s.Set(web, &services.Health{Port: port, Local: 1})
	healthy.Store(false)
	expect(t, port, 503, "1", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":1,"serviceProxyHealthy":false}`)
	healthy.Store(true)
	expect(t, port, 200, "1", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`)

	other := freePort(t)
	s.Set(web, &services.Health{Port: other, Local: 1})
	shut(t, "127.0.0.1", port)
	expect(t, other, 200, "1", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`)
	s.Set(web, nil)
	shut(t, "127.0.0.1", other)
	s.Set(web, nil)
	if len(failures) > 0 {
		t.Error(<-failures)
	}
}

func TestPortMovesToAnother(t *testing.T) {
	s, _, failures := start(t)
	port := freePort(t)
	api := services.Key{Namespace: "shop", Name: "api"}
	s.Set(web, &services.Health{Port: port, Local: 2})
	// The second report may arrive before the first.
	s.Set(api, &services.Health{Port: port, Local: 3})
	if f := <-failures; !strings.Contains(f, "shop/api: health check port") || !strings.Contains(f, "in use") {
		t.Errorf("reported %q", f)
	}
	expect(t, port, 200, "2", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`)
	s.Set(web, nil)
	expect(t, port, 200, "3", `{"service":{"namespace":"shop","name":"api"},"localEndpoints":3,"serviceProxyHealthy":true}`)
}

func TestPortOfAnotherProgramIsTriedAgain(t *testing.T) {
	s, _, failures := start(t)
	other := occupy(t, "127.0.0.1:0")
	port := netip.MustParseAddrPort(other.Addr().String()).Port()
	s.Set(web, &services.Health{Port: port, Local: 2})
	<-failures
	if s.retry == nil {
		t.Fatal("it is not to be tried again")
	}
	_ = other.Close()
	s.retry.Reset(0)
	testnet.Eventually(t, 10*time.Second, "it is opened", func() bool {
		status, _, _, err := ask("127.0.0.1", port)
		return err == nil && status == 200
	})
}

func TestAddresses(t *testing.T) {
	s, _, failures := start(t)
	port := freePort(t)
	s.Set(web, &services.Health{Port: port, Local: 1})
	s.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")})
	shut(t, "127.0.0.1", port)
	for _, host := range []string{"127.0.0.2", "127.0.0.3"} {
		if status, _, _, err := ask(host, port); err != nil || status != 200 {
			t.Errorf("%s: %d, %v", host, status, err)
		}
	}
	s.SetAddresses(nil)
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		shut(t, host, port)
	}
	s.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	expect(t, port, 200, "1", `{"service":{"namespace":"shop","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`)
	s.Close()
	shut(t, "127.0.0.1", port)
	if len(failures) > 0 {
		t.Error(<-failures)
	}
}

// TestNoAddressesMeansAll: a node without configured addresses listens on all.
func TestNoAddressesMeansAll(t *testing.T) {
	s := New(func() bool { return true }, func(_ services.Key, err error) { t.Error(err) }, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	port := freePort(t)
	s.Set(web, &services.Health{Port: port, Local: 1})
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		if status, _, _, err := ask(host, port); err != nil || status != 200 {
			t.Errorf("%s: %d, %v", host, status, err)
		}
	}
}

// TestAddressOfNoDevice: a node behind NAT has addresses on which it cannot listen. It answers on
// the others, reports the error once, and listens there too as soon as it can.
func TestAddressOfNoDevice(t *testing.T) {
	s, _, failures := start(t)
	other := occupy(t, "127.0.0.2:0") // in place of an address that becomes one of the node
	port := netip.MustParseAddrPort(other.Addr().String()).Port()
	s.SetAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("127.0.0.3")})
	s.Set(web, &services.Health{Port: port, Local: 1})
	if f := <-failures; !strings.Contains(f, "127.0.0.2") || !strings.Contains(f, "198.51.100.77") || strings.Contains(f, "127.0.0.3") {
		t.Errorf("reported %q", f)
	}
	answers := func(host string) bool {
		status, _, _, err := ask(host, port)
		return err == nil && status == 200
	}
	if !answers("127.0.0.1") || !answers("127.0.0.3") {
		t.Error("it does not answer where it can")
	}
	s.Set(web, &services.Health{Port: port, Local: 2})
	if len(failures) > 0 {
		t.Errorf("reported again: %q", <-failures)
	}
	_ = other.Close()
	s.retry.Reset(0)
	testnet.Eventually(t, 10*time.Second, "it answers there, too", func() bool { return answers("127.0.0.2") })
	if f := <-failures; strings.Contains(f, "127.0.0.2") || !strings.Contains(f, "198.51.100.77") {
		t.Errorf("reported %q", f)
	}
	if !answers("127.0.0.1") {
		t.Error("it does not answer any more")
	}
}
