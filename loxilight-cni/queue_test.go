// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestFirstDelStays: a repeated DEL does not replace the first, unless the first cannot be read.
func TestFirstDelStays(t *testing.T) {
	dir := t.TempDir()
	put := func(config string) string {
		t.Helper()
		if err := enqueue(dir, &api.CNIParams{Command: api.CNIDel, ContainerID: "c1", IfName: "eth0", Config: []byte(config)}); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("files %q, %v", files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != `{"command":"DEL","containerID":"c1","ifName":"eth0","config":{"mtu":1500}}` {
			t.Errorf("queued %s", text)
		}
		return files[0]
	}
	path := put(`{"mtu":1500}`)
	put(`{"mtu":"x"}`)
	if err := os.Truncate(path, 20); err != nil {
		t.Fatal(err)
	}
	put(`{"mtu":1500}`)
}
