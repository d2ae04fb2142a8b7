// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// API is the administrator's client of the API server, from outside the nodes.
type API struct {
	client *http.Client
	url    string
	token  string // empty: authenticated by the administrator's certificate
}

func newAPI(c *Cluster) (*API, error) {
	pair, err := tls.LoadX509KeyPair(c.ca.path("admin.crt"), c.ca.path("admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.ca.path("ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &API{url: c.APIServer(), client: &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
				err = c.Switch.Try(func() error {
					conn, err = net.DialTimeout(network, address, 5*time.Second)
					return err
				})
				return conn, err
			},
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
		},
	}}, nil
}

// As returns the API server as seen by the holder of a token.
func (a *API) As(token string) *API {
	transport := a.client.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = nil
	return &API{url: a.url, token: token, client: &http.Client{Timeout: a.client.Timeout, Transport: transport}}
}

// Raw makes one request and returns the answer's body.
func (a *API) Raw(method, path, contentType, body string) ([]byte, error) {
	r, err := http.NewRequest(method, a.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	answer, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return text, err
}

// Get decodes the object at path.
func (a *API) Get(path string, into any) error {
	text, err := a.Raw("GET", path, "", "")
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// Patch changes the object at path with a merge patch.
func (a *API) Patch(path, patch string) error {
	_, err := a.Raw("PATCH", path, "application/merge-patch+json", patch)
	return err
}

// Delete deletes the object at path.
func (a *API) Delete(path string) error {
	_, err := a.Raw("DELETE", path, "", "")
	return err
}

// Kubectl runs kubectl with input as its standard input.
func (c *Cluster) Kubectl(input string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	err := c.Switch.Try(func() error {
		cmd := exec.Command("timeout", append([]string{"120", filepath.Join(c.p.Dir, "kubectl"), "--kubeconfig", c.ca.path("admin.kubeconfig"), "--cache-dir", filepath.Join(c.dir, "kubectl")}, args...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), err
}

// Apply applies objects as kubectl apply does.
func (c *Cluster) Apply(t testnet.T, objects string) {
	t.Helper()
	if out, err := c.Kubectl(objects, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// HowTo returns the commands for looking around in the cluster.
func (c *Cluster) HowTo() string {
	text := fmt.Sprintf("ip netns exec %s %s --kubeconfig %s get pods -A", c.Switch.Name(), filepath.Join(c.p.Dir, "kubectl"), c.ca.path("admin.kubeconfig"))
	for _, n := range c.Nodes {
		text += fmt.Sprintf("\n%s: nsenter --target %d --net --mount --uts --ipc --pid bash", n.Name, n.init)
	}
	return text
}
