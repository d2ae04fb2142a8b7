// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

const env = "CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/x CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin CNI_ARGS=K8S_POD_NAME=web"

// runWith runs the plugin with environment variables and a configuration.
func runWith(t *testing.T, vars, config string) (code int, stdout string) {
	t.Helper()
	get := func(name string) string {
		value := ""
		for pair := range strings.FieldsSeq(vars) { // if a variable occurs twice, the last value counts
			if k, v, _ := strings.Cut(pair, "="); k == name {
				value = v
			}
		}
		return value
	}
	var out, errs bytes.Buffer
	code = run(get, strings.NewReader(config), &out, &errs)
	return code, out.String()
}

// told returns the failure printed on stdout.
func told(t *testing.T, stdout string) (f failure) {
	t.Helper()
	if err := json.Unmarshal([]byte(stdout), &f); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	return f
}

func TestVersion(t *testing.T) {
	code, out := runWith(t, "CNI_COMMAND=VERSION", `{"cniVersion": "1.0.0"}`)
	if want := `{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"; code != 0 || out != want {
		t.Errorf("%d: %s, want %s", code, out, want)
	}
}

func TestRefusals(t *testing.T) {
	defer func(before time.Duration) { timeouts[api.CNIStatus] = before }(timeouts[api.CNIStatus])
	timeouts[api.CNIStatus] = time.Second
	const good = `{"cniVersion":"1.1.0","name":"pods","type":"loxilight-cni","socket":"/nonexistent/control.sock"}`
	for _, c := range []struct {
		vars, config string
		code         int
		says         string
	}{
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":`, 6, "not valid"},
		{"CNI_COMMAND=ADD " + env, `[1]`, 6, "want an object, not an array"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":1,"name":"pods"}`, 6, "cniVersion: want a string, not a number"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":"1.0.0","name":"pods","socket":{}}`, 6, "socket: want a string, not an object"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":"0.2.0","name":"pods"}`, 1, `"0.2.0"`},
		{"CNI_COMMAND=ADD " + env, `{"name":"pods"}`, 1, "cniVersion"},
		{"CNI_COMMAND=CHECK " + env, `{"cniVersion":"0.3.1","name":"pods"}`, 1, "0.4.0"},
		{"CNI_COMMAND=GC " + env, `{"cniVersion":"1.0.0","name":"pods"}`, 1, "1.1.0"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":"1.0.0","name":"-"}`, 7, "name"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":"1.0.0","name":"pods","stateDir":"x"}`, 7, "stateDir"},
		{"CNI_COMMAND=ADD " + env, `{"cniVersion":"1.0.0","name":"pods","socket":"tcp://x"}`, 7, "socket"},
		{"CNI_COMMAND=NO " + env, good, 4, "CNI_COMMAND"},
		{"CNI_COMMAND=ADD", good, 4, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"},
		{"CNI_COMMAND=DEL CNI_CONTAINERID=c1", good, 4, "CNI_IFNAME"},
		{"CNI_COMMAND=ADD " + env + " CNI_CONTAINERID=../x", good, 4, "CNI_CONTAINERID"},
		{"CNI_COMMAND=ADD " + env + " CNI_CONTAINERID=" + strings.Repeat("c", 300), good, 4, "CNI_CONTAINERID: has 300 bytes, at most 253"},
		{"CNI_COMMAND=CHECK " + env + " CNI_CONTAINERID=" + strings.Repeat("c", 254), good, 4, "CNI_CONTAINERID: has 254 bytes"},
		{"CNI_COMMAND=ADD " + env + " CNI_CONTAINERID=" + strings.Repeat("c", 253), good, 11, "not running"},
		{"CNI_COMMAND=ADD " + env + " CNI_IFNAME=a/b", good, 4, "CNI_IFNAME"},
		{"CNI_COMMAND=ADD " + env + " CNI_IFNAME=sixteencharacter", good, 4, "CNI_IFNAME"},
		{"CNI_COMMAND=ADD " + env, good, 11, "not running"},
		{"CNI_COMMAND=CHECK " + env, good, 11, "not running"},
		{"CNI_COMMAND=GC", good, 11, "not running"},
		{"CNI_COMMAND=STATUS", good, 50, "not running"},
	} {
		code, out := runWith(t, c.vars, c.config)
		f := told(t, out)
		if code != 1 || f.Code != c.code || !strings.Contains(f.Msg, c.says) || f.CNIVersion == "" {
			t.Errorf("%s with %s: exit code %d, %+v; want code %d, %q", c.vars, c.config, code, f, c.code, c.says)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type torn struct{}

func (torn) Read([]byte) (int, error) { return 0, errors.New("torn") }

func TestInput(t *testing.T) {
	get := func(name string) string {
		if name == "CNI_COMMAND" {
			return "ADD"
		}
		return "x"
	}
	for _, in := range []io.Reader{endless{}, torn{}} {
		var out bytes.Buffer
		if code := run(get, in, &out, io.Discard); code != 1 || told(t, out.String()).Code != api.CNIFailedIO {
			t.Errorf("%T: exit code %d, %s", in, code, out.String())
		}
	}
}

// TestQueue runs without a daemon, and with a hung daemon: a DEL is queued immediately.
func TestQueue(t *testing.T) {
	dir := t.TempDir()
	hung := filepath.Join(dir, "hung.sock")
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", hung) // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, socket := range map[string]string{"none": filepath.Join(dir, "none.sock"), "hung": hung} {
		state := filepath.Join(dir, name)
		config := `{"cniVersion":"1.0.0","name":"pods","type":"loxilight-cni","extra":[1],"socket":"` + socket + `","stateDir":"` + state + `"}`
		begin := time.Now()
		for range 2 {
			if code, out := runWith(t, "CNI_COMMAND=DEL "+env, config); code != 0 || out != "" {
				t.Fatalf("%s: exit code %d: %s", name, code, out)
			}
		}
		if took := time.Since(begin) / 2; took > time.Second {
			t.Errorf("%s: took %s, want at most a second", name, took)
		}
		files, err := filepath.Glob(filepath.Join(state, api.CNIQueue, "*"))
		if err != nil || len(files) != 1 || filepath.Base(files[0]) != "d72e032fedd94c16f31250b1845eb1ce.json" {
			t.Fatalf("%s: queue %q, %v", name, files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		want := `{"command":"DEL","containerID":"c1","netns":"/run/netns/x","ifName":"eth0","args":"K8S_POD_NAME=web","path":"/opt/cni/bin","config":` + config + `}`
		if string(text) != want {
			t.Errorf("%s: queued\n%s, want\n%s", name, text, want)
		}
	}
	config := `{"cniVersion":"1.0.0","name":"pods","socket":"` + filepath.Join(dir, "none.sock") + `","stateDir":"/proc/none"}`
	if code, out := runWith(t, "CNI_COMMAND=DEL "+env, config); code != 1 || told(t, out).Code != api.CNIFailedIO {
		t.Errorf("a queue that cannot be written: exit code %d: %s", code, out)
	}
}
