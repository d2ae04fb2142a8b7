// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTokensNeedTLS: if requests carry a token, an API server without TLS is rejected.
func TestTokensNeedTLS(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	_, err := New(Options{APIServer: "http://192.0.2.1:8080"})
	if err == nil || !strings.Contains(err.Error(), `apiServer "http://192.0.2.1:8080" is refused`) {
		t.Errorf("in a pod: %v", err)
	}
	// Without TLS, client-go does not send the credentials in a kubeconfig.
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: \"http://192.0.2.1:8080\"}}], users: [{name: u, user: {token: secret}}], " +
		"contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := load(Options{Kubeconfig: file})
	if err != nil || cfg.BearerToken != "" || cfg.BearerTokenFile != "" {
		t.Errorf("a token of a kubeconfig is sent without TLS: %v", err)
	}
}
