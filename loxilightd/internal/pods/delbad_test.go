// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// uselessToDel are configurations that ADD rejects.
var uselessToDel = map[string]map[string]any{
	"mtu":           {"mtu": 3},
	"mtu, no int":   {"mtu": "x"},
	"routes":        {"ipam": map[string]any{"routes": []map[string]any{{"dst": "nowhere"}}}},
	"portMappings":  {"runtimeConfig": map[string]any{"portMappings": "x"}},
	"bandwidth":     {"runtimeConfig": map[string]any{"bandwidth": map[string]any{"ingressRate": -1}}},
	"network":       {"network": 7},
	"other network": {"network": "nowhere"},
	"no plugin":     {"ipam": map[string]any{"type": "gone"}},
	"path":          {"ipam": map[string]any{"type": "../gone"}},
	"ipam":          {"ipam": "x"},
	"version":       {"cniVersion": "9.9.9"},
	"name":          {"name": ""},
	"prevResult":    {"prevResult": 3},
}

// TestDelWhateverTheConfiguration: DEL does not fail because of fields that it does not need,
// whether it is executed immediately or from the queue.
func TestDelWhateverTheConfiguration(t *testing.T) {
	n := newNode(t)
	for name, more := range uselessToDel {
		n.mustAdd("c1", nil)
		for _, container := range []string{"c1", "gone"} {
			if err := n.command(api.CNIDel, container, more); err != nil {
				t.Errorf("%s: DEL of %s: %v", name, container, err)
			}
		}
		n.wantOnly()
		n.mustAdd("c1", nil)
		path := n.enqueue("c1", more)
		n.drain(t.Context())
		n.wantOnly()
		if _, err := os.Stat(path + damagedSuffix); err == nil {
			t.Errorf("%s: it was set aside", name)
		}
	}
	p := n.params(api.CNIDel, "c1", nil)
	n.mustAdd("c1", nil)
	p.Config = json.RawMessage(`{"cniVersion`)
	if _, err := n.Handle(t.Context(), p); err != nil {
		t.Errorf("no JSON: %v", err)
	}
	n.wantOnly()
}

// TestQueueCutShort: a truncated entry is carried out if its file name identifies the interface;
// other truncated entries are reported.
func TestQueueCutShort(t *testing.T) {
	n := newNode(t)
	n.mustAdd("known", nil)
	n.mustAdd("stays", nil)
	for container, size := range map[string]int{"known": 20, "never": 40, "named": 220} {
		n.enqueueFirst(container, nil, size)
	}
	n.drain(t.Context())
	n.wantOnly("stays")
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
	path := n.enqueueFirst("unknown", nil, 20)
	n.drain(t.Context())
	n.wantProblem(path + damagedSuffix)
	if err := os.Remove(path + damagedSuffix); err != nil {
		t.Fatal(err)
	}
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("it is gone, and still: %q", p)
	}
}

// TestDelOfUnknownByPlugin: a DEL does not pass routes to a plugin, which might not be able to
// parse them.
func TestDelOfUnknownByPlugin(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("#!/bin/sh\ncat > "+dir+"/config\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := n.params(api.CNIDel, "c1", map[string]any{"ipam": map[string]any{"type": "other", "routes": "x", "key": "kept"}})
	n.usePlugins(dir)
	if _, err := n.Handle(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil || strings.Contains(string(config), "routes") || !strings.Contains(string(config), `"key":"kept"`) {
		t.Errorf("its configuration was %s, %v", config, err)
	}
}

// TestGCRefusesHalfEntries: an incomplete entry does not cause the removal of a live pod.
func TestGCRefusesHalfEntries(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	for _, entry := range []map[string]string{{"containerID": "c1"}, {"ifname": "eth0"}, {}} {
		err := n.command(api.CNIGC, "", map[string]any{"cni.dev/valid-attachments": []map[string]string{{"containerID": "c2", "ifname": "eth0"}, entry}})
		if err == nil || err.Data.CNICode != api.CNIConfigInvalid || err.Data.Field != "cni.dev/valid-attachments[1]" {
			t.Errorf("%v: %v", entry, err)
		}
	}
	n.wantOnly("c1")
}
