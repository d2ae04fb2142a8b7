// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

func TestProbes(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
		case "/moved":
			http.Redirect(w, r, "/bad", http.StatusFound)
		case "/slow":
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	http4, https4 := addrOf(plain.Listener), addrOf(secure.Listener)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := addrOf(silent)
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	other := netip.AddrPortFrom(http4.Addr(), 9)

	for _, tt := range []struct {
		check   Check
		backend netip.AddrPort
		want    string // part of the error; empty: healthy
	}{
		{Check{Type: TCP}, http4, ""},
		{Check{Type: TCP}, closed, "tcp: connection refused"},
		{Check{Type: TCP, Port: http4.Port()}, other, ""},
		{Check{Type: HTTP, Path: "/ok"}, http4, ""},
		{Check{Type: HTTP, Path: "/moved"}, http4, ""},
		{Check{Type: HTTP, Path: "/bad"}, http4, "http: answered with 503 Service Unavailable"},
		{Check{Type: HTTP, Path: "/slow"}, http4, "http: no answer in 300ms"},
		{Check{Type: HTTP, Path: "/ok"}, closed, "http: connection refused"},
		{Check{Type: HTTPS, Path: "/ok"}, https4, ""},
		{Check{Type: HTTPS, Path: "/ok"}, http4, "https: "},
		{Check{Type: "telepathy"}, http4, "no such type"},
	} {
		tt.check.Timeout = 5 * time.Second
		if tt.check.Path == "/slow" {
			tt.check.Timeout = 300 * time.Millisecond
		}
		wantProbe(t, tt.check, tt.backend, tt.want)
	}
}

func wantProbe(t *testing.T, c Check, backend netip.AddrPort, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), c.Timeout)
	defer cancel()
	err := probe(ctx, &c, backend)
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s %s %s: %v, want %q", c.Type, backend, c.Path, err, want)
	}
}

func addrOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

func TestPing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_NET_RAW")
	}
	c := Check{Type: Ping, Timeout: 5 * time.Second}
	wantProbe(t, c, netip.MustParseAddrPort("127.0.0.1:80"), "")
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if a.String() == "::1/128" {
				wantProbe(t, c, netip.MustParseAddrPort("[::1]:80"), "")
			}
		}
	}
	// Without a zone, the kernel does not know which link to use.
	wantProbe(t, c, netip.MustParseAddrPort("[fe80::5]:80"), "ping: ")
}

// TestSameTimeout: a probe that times out gives the same message whether the socket or the context
// reaches the deadline first.
func TestSameTimeout(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // the connection was only read, so nothing can be lost
	if err := silent.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	_, _, ofSocket := silent.ReadFrom(make([]byte, 1))
	_, ofDialer := (&net.Dialer{Deadline: time.Unix(1, 0)}).Dial("tcp", "127.0.0.1:9")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := Check{Type: Ping, Timeout: time.Second}
	for name, tt := range map[string]struct {
		ctx context.Context
		err error
	}{
		"socket":  {t.Context(), ofSocket},
		"dialer":  {t.Context(), ofDialer},
		"web":     {t.Context(), &url.Error{Op: "Get", URL: "http://192.0.2.1:80/", Err: ofDialer}},
		"context": {ended, ended.Err()},
	} {
		if tt.err == nil {
			t.Fatalf("%s: no error", name)
		}
		if got := plain(tt.ctx, &c, tt.err); got == nil || got.Error() != "ping: no answer in 1s" {
			t.Errorf("%s: %v became %v", name, tt.err, got)
		}
	}
}
