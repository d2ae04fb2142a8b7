// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestS17ProbesDoNotPileUp: clients send one request and keep their connections, at the port of the
// agent's probes and at the health check port of a Service. Each connection ends with its answer,
// and probes are answered throughout.
func TestS17ProbesDoNotPileUp(t *testing.T) {
	probes, balancer := freePort(t), freePort(t)
	k := newKubeNode(t, fmt.Sprintf("health: {listen: \"127.0.0.1:%d\"}\n", probes))
	s := kubeService("shop", "web", time.Minute, "10.96.0.50")
	s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, int32(balancer)
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	k.kube.Set(s)
	k.told("shop/web")
	for what, at := range map[string]string{
		"/livez": net.JoinHostPort("127.0.0.1", strconv.Itoa(probes)),
		"/":      net.JoinHostPort("127.0.0.1", strconv.Itoa(balancer)), "/six": net.JoinHostPort("::1", strconv.Itoa(balancer)),
	} {
		const clients = 300
		var ended atomic.Int64
		for range clients {
			conn := askOnce(t, at, what)
			go func() {
				_, _ = conn.Read(make([]byte, 1)) // until the server ends the connection, or the test does
				ended.Add(1)
			}()
		}
		deadline := time.Now().Add(20 * time.Second)
		for ended.Load() < clients && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if n := clients - ended.Load(); n > 0 {
			t.Errorf("%s%s: %d of %d connections stay open", at, what, n, clients)
		}
		askOnce(t, at, what)
	}
}

// askOnce sends one request and returns the connection after the answer.
func askOnce(t *testing.T, at, path string) net.Conn {
	t.Helper()
	var conn net.Conn
	testnet.Eventually(t, 30*time.Second, at+" answers", func() (ok bool) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return false
		}
		conn = c
		return true
	})
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 4096), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close() // it is not read
	return conn
}

// freePort returns a port at which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
