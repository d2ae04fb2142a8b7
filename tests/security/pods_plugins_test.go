// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestS10PluginOfTheCaller: a caller of the method cni, such as root without capabilities, names a
// directory of its own as CNI_PATH and an IPAM plugin in it. The daemon, which has capabilities,
// does not run the plugin for ADD, CHECK or DEL, regardless of links and ".." in the names, and
// runs a plugin of its configuration.
func TestS10PluginOfTheCaller(t *testing.T) {
	dir := t.TempDir()
	folder := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	scratch, trusted := folder("scratch"), folder("trusted")
	put := func(folder, name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ran := filepath.Join(dir, "ran")
	evil := "#!/bin/sh\ngrep -h CapEff /proc/self/status > " + ran + "\n"
	put(scratch, "evil", evil)
	put(scratch, "static", evil)
	if err := os.Symlink(scratch, filepath.Join(trusted, "link")); err != nil {
		t.Fatal(err)
	}
	env := filepath.Join(dir, "env")
	put(trusted, "static", "#!/bin/sh\necho $CNI_PATH > "+env+"\necho '{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.73.3.200/24\",\"gateway\":\"10.73.3.1\"}]}'\n")
	s := newPodsSite(t, "cni: {ipamPlugins: ["+trusted+"]}")
	p := s.newPod(nil)
	call := func(command, plugin string) error {
		config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "ipam": map[string]any{"type": plugin}})
		if err != nil {
			t.Fatal(err)
		}
		params := api.CNIParams{Command: command, ContainerID: "evil", Netns: p.Path(), IfName: "eth0", Path: scratch, Config: config}
		return s.Client.Change(context.Background(), api.MethodCNI, "", 0, params, new(json.RawMessage))
	}
	for _, plugin := range []string{"evil", "link/evil", "../scratch/evil", "..", "link", scratch + "/evil"} {
		for _, command := range []string{api.CNIAdd, api.CNICheck, api.CNIDel} {
			if err := call(command, plugin); command == api.CNIAdd && err == nil {
				t.Errorf("%s with plugin %q is not refused", command, plugin)
			}
			if caps, err := os.ReadFile(ran); err == nil {
				t.Fatalf("%s: plugin %q ran with %s", command, plugin, caps)
			}
		}
	}
	if err := call(api.CNIAdd, "static"); err != nil {
		t.Fatalf("a plugin of the configuration: %v", err)
	}
	if path, _ := os.ReadFile(env); strings.TrimSpace(string(path)) != trusted {
		t.Errorf("the plugin was given CNI_PATH=%s", path)
	}
	if err := call(api.CNIDel, "static"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the caller's plugin ran")
	}
}
