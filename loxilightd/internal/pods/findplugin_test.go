// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

// TestPluginFolders: an IPAM plugin is run only from configured directories, and only if no user
// but its owner can have written it.
func TestPluginFolders(t *testing.T) {
	const script = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.201.3.77/24\"}]}'\n"
	n := newNode(t)
	top := t.TempDir()
	put := func(dir, name string, dirMode, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(top, dir, name)
		for _, err := range []error{
			os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(script), 0o700), os.Chmod(path, mode), os.Chmod(filepath.Dir(path), dirMode),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Dir(path)
	}
	good := put("good", "good", 0o755, 0o755)
	put("good", "writable", 0o755, 0o757)
	put("good", "group", 0o755, 0o775)
	put("good", "plain", 0o755, 0o644)
	open := put("open", "inopen", 0o777, 0o755)
	sticky := put("sticky", "insticky", 0o777|os.ModeSticky, 0o755)
	put("above/below", "below", 0o755, 0o755)
	above := filepath.Join(top, "above")
	if err := os.Chmod(above, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"linkgood": good + "/good", "linkopen": open + "/inopen"} {
		if err := os.Symlink(to, filepath.Join(good, name)); err != nil {
			t.Fatal(err)
		}
	}
	outside := put("outside", "outside", 0o755, 0o755)
	n.usePlugins("/nonexistent", good, open, sticky, above+"/below")
	for name, want := range map[string]string{
		"good": "", "linkgood": "", "writable": "writable by group or others", "group": "chmod go-w " + good + "/group", "plain": "not an executable file",
		"inopen": open + " is writable", "insticky": sticky + " is writable", "below": above + " is writable", "linkopen": open + " is writable",
		"outside": "there is no plugin", "absent": "cni.ipamPlugins", "..": "not an executable file",
	} {
		p := n.params(api.CNIAdd, "c1", map[string]any{"ipam": map[string]any{"type": name}})
		p.Path = outside + ":" + open
		_, err := n.Handle(t.Context(), p)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case want != "" && (err == nil || err.Data.CNICode != api.CNIConfigInvalid || err.Data.Field != "ipam.type" || !strings.Contains(err.Message, want)):
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if err := n.command(api.CNIDel, "c1", nil); err != nil {
			t.Fatal(err)
		}
	}
	if n.root = 12345; os.Getuid() == 0 {
		if err := os.Chown(filepath.Join(good, "good"), 4321, 0); err != nil {
			t.Fatal(err)
		}
		p := n.params(api.CNIAdd, "c1", map[string]any{"ipam": map[string]any{"type": "good"}})
		if _, err := n.Handle(t.Context(), p); err == nil || !strings.Contains(err.Message, "is not owned by root") {
			t.Errorf("a plugin of another user: %v", err)
		}
	}
}
