// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const (
	configs = "../../configs/kubernetes"
	note    = "# Made from chart/ by make manifests: change it there.\n# %s; see docs/kubernetes.md.\n"
)

var update = flag.Bool("update", false, "write the manifests")

var variants = []struct {
	file   string
	use    string
	values map[string]any
	only   []string // templates
}{
	{"loxilight.yaml", "kubectl apply -f loxilight.yaml", nil, nil},
	{"loxilight-agent.yaml", "kubectl apply -f loxilight-agent.yaml", map[string]any{"daemon": map[string]any{"enabled": false}}, nil},
	{"loxilight-leave.yaml", "sed s/NODE/node1/ loxilight-leave.yaml | kubectl apply -f -", map[string]any{"leave": "NODE"}, []string{"leave.yaml"}},
}

// TestManifests: the manifests are identical to the rendered chart.
func TestManifests(t *testing.T) {
	for _, v := range variants {
		text, err := Render(filepath.Join(configs, "chart"), Release{"loxilight", "kube-system"}, v.values, v.only...)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll(note, "%s", v.use) + text
		path := filepath.Join(configs, v.file)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if is, err := os.ReadFile(path); err != nil || string(is) != want {
			t.Errorf("%s is not what the chart makes: make manifests (%v)", v.file, err)
		}
		for _, o := range objects(t, text) {
			if o["apiVersion"] == nil || o["kind"] == nil || o["metadata"] == nil {
				t.Errorf("%s: no object: %v", v.file, o)
			}
		}
	}
}

func objects(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		all = append(all, o)
	}
}

// at returns the element at path in o.
func at(t *testing.T, o any, path ...any) any {
	t.Helper()
	for i, step := range path {
		var ok bool
		switch step := step.(type) {
		case string:
			var m map[string]any
			if m, ok = o.(map[string]any); ok {
				o, ok = m[step]
			}
		case int:
			var l []any
			if l, ok = o.([]any); ok && step < len(l) {
				o = l[step]
			}
		}
		if !ok {
			t.Fatalf("no %v in %v", path[:i+1], o)
		}
	}
	return o
}

// TestValues: values take effect in the right places.
func TestValues(t *testing.T) {
	text, err := Render(filepath.Join(configs, "chart"), Release{"mine", "net"}, map[string]any{
		"image":          map[string]any{"repository": "registry.example:5000/loxilight", "tag": "1.2"},
		"daemon":         map[string]any{"config": map[string]any{"switch": map[string]any{"namespace": "host"}}},
		"agent":          map[string]any{"config": map[string]any{"apiServer": "https://192.0.2.1:6443"}},
		"cni":            map[string]any{"binDir": "/usr/lib/cni"},
		"podAnnotations": map[string]any{"a": "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]map[string]any{}
	for _, o := range objects(t, text) {
		byKind[o["kind"].(string)] = o
		if ns := at(t, o, "metadata").(map[string]any)["namespace"]; ns != nil && ns != "net" {
			t.Errorf("%s is in namespace %v", o["kind"], ns)
		}
	}
	config := at(t, byKind["ConfigMap"], "data").(map[string]any)
	for key, want := range map[string]string{
		"loxilightd.yaml": "namespace: host", "agent.yaml": "apiServer: https://192.0.2.1:6443", "10-loxilight.conflist": `"type": "loxilight-cni"`,
	} {
		if text, _ := config[key].(string); !strings.Contains(text, want) {
			t.Errorf("%s is %q, want %q in it", key, text, want)
		}
	}
	pod := at(t, byKind["DaemonSet"], "spec", "template", "spec")
	if got := at(t, pod, "containers", 0, "image"); got != "registry.example:5000/loxilight:1.2" {
		t.Errorf("image %v", got)
	}
	if got := at(t, byKind["DaemonSet"], "spec", "template", "metadata", "annotations", "a"); got != "b" {
		t.Errorf("annotation %v", got)
	}
	if !strings.Contains(text, "path: /usr/lib/cni,") {
		t.Error("the folder of plugins is another one")
	}
	for _, c := range at(t, pod, "containers").([]any) {
		if at(t, c, "securityContext", "readOnlyRootFilesystem") != true {
			t.Errorf("%v can write to its root", at(t, c, "name"))
		}
	}
}

// TestRightsOfTheAgent: the agent may read what policies are made of, and write none of it.
func TestRightsOfTheAgent(t *testing.T) {
	text, err := Render(filepath.Join(configs, "chart"), Release{"mine", "net"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string][]any{} // by resource
	for _, o := range objects(t, text) {
		if o["kind"] != "ClusterRole" || strings.Contains(at(t, o, "metadata", "name").(string), "controller") {
			continue
		}
		for _, rule := range at(t, o, "rules").([]any) {
			for _, resource := range at(t, rule, "resources").([]any) {
				key := fmt.Sprint(at(t, rule, "apiGroups", 0), "/", resource)
				verbs[key] = append(verbs[key], at(t, rule, "verbs").([]any)...)
			}
		}
	}
	for _, resource := range []string{"/pods", "/namespaces", "networking.k8s.io/networkpolicies"} {
		if want := []any{"list", "watch"}; !reflect.DeepEqual(verbs[resource], want) {
			t.Errorf("%s: the agent may %v, want %v", resource, verbs[resource], want)
		}
	}
}

// TestProbesFollowTheConfiguration: the kubelet probes the agent's listening address, and does not
// probe if that address is empty.
func TestProbesFollowTheConfiguration(t *testing.T) {
	type asked = map[string]any
	for _, tt := range []struct {
		listen any // nil: not set
		want   asked
	}{
		{nil, asked{"port": 10256}}, {":10256", asked{"port": 10256}}, {"0.0.0.0:1256", asked{"port": 1256}}, {"[::]:1256", asked{"port": 1256}},
		{"127.0.0.1:1256", asked{"port": 1256, "host": "127.0.0.1"}}, {"[::1]:1256", asked{"port": 1256, "host": "::1"}},
		{"localhost:1256", asked{"port": 1256, "host": "localhost"}}, {"", nil},
	} {
		health := map[string]any{}
		if tt.listen != nil {
			health["listen"] = tt.listen
		}
		text, err := Render(filepath.Join(configs, "chart"), Release{"mine", "net"}, map[string]any{"agent": map[string]any{"config": map[string]any{"health": health}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, text) {
			if o["kind"] != "DaemonSet" {
				continue
			}
			agent := at(t, o, "spec", "template", "spec", "containers", 1).(map[string]any)
			for probe, path := range map[string]string{"livenessProbe": "/livez", "readinessProbe": "/readyz"} {
				if tt.want == nil {
					if agent[probe] != nil {
						t.Errorf("listen %q: %s is %v, want none", tt.listen, probe, agent[probe])
					}
					continue
				}
				want := maps.Clone(tt.want)
				want["path"] = path
				if got := at(t, agent, probe, "httpGet"); !reflect.DeepEqual(got, any(want)) {
					t.Errorf("listen %v: %s asks %v, want %v", tt.listen, probe, got, want)
				}
			}
		}
	}
}

// TestLeaving: the pod that removes loxilight from a node has the same mounts as the DaemonSet's
// containers, and the DaemonSet does not run on nodes with the label loxilight.io/leave.
func TestLeaving(t *testing.T) {
	text, err := Render(filepath.Join(configs, "chart"), Release{"mine", "net"}, map[string]any{
		"leave": "n1", "cni": map[string]any{"binDir": "/usr/lib/cni", "confDir": "/etc/rke2/net.d"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var left, stays any
	for _, o := range objects(t, text) {
		switch o["kind"] {
		case "Pod":
			left = at(t, o, "spec")
		case "DaemonSet":
			stays = at(t, o, "spec", "template", "spec")
		}
	}
	if got := at(t, left, "nodeName"); got != "n1" {
		t.Errorf("it is on node %v", got)
	}
	terms := at(t, stays, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", 0, "matchExpressions", 0)
	if at(t, terms, "key") != "loxilight.io/leave" || at(t, terms, "operator") != "DoesNotExist" {
		t.Errorf("the daemon stays: %v", terms)
	}
	volumes := func(spec any) map[any]any {
		all := map[any]any{}
		for _, v := range at(t, spec, "volumes").([]any) {
			all[at(t, v, "name")] = v
		}
		return all
	}
	mine, theirs := volumes(left), volumes(stays)
	for name, volume := range mine {
		if !reflect.DeepEqual(volume, theirs[name]) {
			t.Errorf("volume %v, the daemon's is %v", volume, theirs[name])
		}
	}
	mounts := func(containers ...any) map[any]map[string]any {
		all := map[any]map[string]any{}
		for _, c := range containers {
			for _, m := range at(t, c, "volumeMounts").([]any) {
				all[at(t, m, "mountPath")] = m.(map[string]any)
			}
		}
		return all
	}
	detach, uninstall := at(t, left, "initContainers", 0), at(t, left, "containers", 0)
	of := mounts(at(t, stays, "containers", 0), at(t, stays, "containers", 2), at(t, stays, "initContainers", 0)) // the last of these has write access
	for path, m := range mounts(detach, uninstall) {
		if !reflect.DeepEqual(m, of[path]) {
			t.Errorf("mount %v, the daemon's is %v", m, of[path])
		}
	}
	if at(t, detach, "securityContext", "privileged") != true || at(t, left, "hostNetwork") != true {
		t.Error("it may not take anything off")
	}
}
