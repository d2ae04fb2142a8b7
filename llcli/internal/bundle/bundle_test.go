// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// machine is the source of an archive: files below a directory, programs by their command line, and
// a daemon.
type machine struct {
	t        *testing.T
	dir      string
	programs map[string]string // output, by the beginning of the command line
	o        Options
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, dir: t.TempDir(), programs: map[string]string{}}
	m.o = Options{
		Instance: "default", Unit: "loxilightd.service", Version: "0.9", Now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Root: m.path("root"),
		Config: m.path("etc/loxilightd.yaml"), ObjectDir: m.path("etc/conf.d"), RunDir: m.path("run"), StateDir: m.path("state"), PinDir: m.path("pins"),
		Loxilightd: "/sbin/loxilightd", CallErr: errors.New("loxilightd is not running"), Exec: m.exec,
	}
	for _, dir := range []string{"run", "state", "pins", "etc/conf.d"} {
		if err := os.MkdirAll(m.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write("etc/loxilightd.yaml", "instance: default\n")
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) exec(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	for begin, out := range m.programs {
		if !strings.HasPrefix(line, begin) {
			continue
		}
		if out == "hangs" {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		_, err := io.WriteString(stdout, out)
		return 0, err
	}
	_, err := io.WriteString(stderr, name+" is not here")
	return 1, err
}

// call is a daemon with one object of each kind and a connection.
func call(_ context.Context, method string, params, result any) error {
	object := `{"kind":"Service","name":"web","labels":{"deploy-token":"` + planted + `"},"spec":{"frontends":["198.51.100.10:80/tcp"],"health":{"type":"http","path":"/x?apikey=` + planted + `"}}}`
	answers := map[string]string{
		api.MethodVersion: `{"version":"1"}`, api.MethodStatus: `{"instance":"default","notReady":[{"object":"Service/web","message":"https://eve:` + planted + `@x/"}]}`,
		api.MethodCounters: `{"packets":1}`, api.MethodConnectionsList: `{"items":[{"source":"192.0.2.7:4660","destination":"198.51.100.10:80"}]}`,
		api.MethodList:        `{"revision":1,"items":[` + object + `]}`,
		api.MethodNetworkList: `{"items":[{"netns":"switch","prefix":"203.0.113.0/24","origin":"loxilight"}]}`,
	}
	text, ok := answers[method]
	if !ok {
		return errors.New("unknown method " + method)
	}
	return json.Unmarshal([]byte(text), result)
}

// archive writes an archive and unpacks it.
func (m *machine) archive() (files map[string]string, manifest Manifest) {
	m.t.Helper()
	var packed bytes.Buffer
	if _, err := Write(m.t.Context(), &packed, m.o); err != nil {
		m.t.Fatal(err)
	}
	unzip, err := gzip.NewReader(&packed)
	if err != nil {
		m.t.Fatal(err)
	}
	files = map[string]string{}
	for r := tar.NewReader(unzip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			m.t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			m.t.Fatal(err)
		}
		if h.Mode != 0o600 {
			m.t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		files[strings.TrimPrefix(h.Name, "loxilight/")] = string(text)
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		m.t.Fatal(err)
	}
	return files, manifest
}

// TestNoSecretLeaves plants secrets in every source of an archive.
func TestNoSecretLeaves(t *testing.T) {
	m := newMachine(t)
	m.o.Call = call
	m.write("etc/loxilightd.yaml", "# password: "+planted+"\ninstance: default\ndb:\n  password: |\n    "+planted+"\n")
	m.write("etc/conf.d/web.yaml", "kind: Service\nname: web\nlabels: {api-key: "+planted+", team: web}\nspec:\n  token: '"+planted+"'\n")
	m.write("root/proc/cmdline", "BOOT_IMAGE=/x quiet luks.passphrase="+planted+" ro")
	m.programs["journalctl"] = "level=INFO msg=start password=\"" + planted + "\" user=eve\nheader Authorization: Bearer " + planted + "12345\n"
	m.programs["systemctl cat"] = "[Service]\nEnvironment=\"API_TOKEN=" + planted + "\" GOMEMLIMIT=1\nExecStart=/x --secret " + planted + "\n"
	m.programs["systemctl show"] = "Environment=PGPASSWORD=" + planted + "\nId=loxilightd.service\n"
	m.programs["/sbin/loxilightd --config"] = `{"findings":[{"what":"token=` + planted + ` is wrong"}]}`
	m.programs["nft"] = "chain x { comment \"password=" + planted + "\" }\n-----BEGIN PRIVATE KEY-----\n" + planted + "\n-----END PRIVATE KEY-----\n"
	m.programs["ip netns"] = "x\n"
	files, manifest := m.archive()
	for name, text := range files {
		if strings.Contains(text, planted) || strings.Contains(text, "hunter2") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, want := range map[string]string{
		"config/loxilightd.yaml": "instance: default", "config/conf.d/web.yaml": "team: web", "kernel/cmdline.txt": "BOOT_IMAGE=/x quiet",
		"unit/journal.txt": "user=eve", "unit/cat.txt": "GOMEMLIMIT=1", "unit/show.txt": "Id=loxilightd.service", "doctor.json": "is wrong",
		"daemon/services.json": "198.51.100.10:80/tcp", "daemon/connections.json": "192.0.2.7:4660", "daemon/status.json": "@x/",
		"network/namespaces.txt": "x", "files.txt": "etc/conf.d/web.yaml", "daemon/service-counters.json": "packets",
		"daemon/switch-routes.json": "203.0.113.0/24",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q:\n%s", name, want, files[name])
		}
		if !slices.ContainsFunc(manifest.Files, func(f File) bool { return f.Name == name && f.What != "" && f.Bytes == len(files[name]) }) {
			t.Errorf("the manifest does not know %s with %d bytes", name, len(files[name]))
		}
	}
	if len(files) != len(manifest.Files)+1 || len(manifest.Redaction) == 0 {
		t.Errorf("%d files, %d in the manifest", len(files), len(manifest.Files))
	}
}

// TestBounds: a stopped daemon, a program that hangs, a program that never stops printing, and
// missing files are reported, and do not stop the collection.
func TestBounds(t *testing.T) {
	m := newMachine(t)
	m.o.PartTimeout = 50 * time.Millisecond
	m.programs["journalctl"] = strings.Repeat("a line of the log that is like others\n", 200_000)
	m.programs["systemctl cat"] = "hangs"
	m.programs["/sbin/loxilightd --config"] = "hangs"
	m.programs["nft"] = strings.Repeat("x", 3<<20) // one line
	files, manifest := m.archive()
	why := map[string]string{}
	for _, x := range manifest.Missing {
		name, _, _ := strings.Cut(x.What, ":")
		why[name] = x.Why
	}
	for name, want := range map[string]string{
		"daemon/": "loxilightd is not running", "unit/cat.txt": "not done within 50ms", "doctor.json": "not done within 300ms", "network/link.txt": "ip is not here",
		"kernel/config.txt": "no such file", "goroutines of the daemon": "terminates the daemon", "unit/cgroup.txt": "systemctl is not here",
	} {
		if !strings.Contains(why[name], want) {
			t.Errorf("%s is missing since %q, want %q", name, why[name], want)
		}
	}
	i := slices.IndexFunc(manifest.Files, func(f File) bool { return f.Name == "unit/journal.txt" })
	if i < 0 || !manifest.Files[i].CutOff || len(files["unit/journal.txt"]) > maxPart || !strings.HasSuffix(files["unit/journal.txt"], "others\n") {
		t.Errorf("the log: %+v, %d bytes", manifest.Files, len(files["unit/journal.txt"]))
	}
	if n := len(files["network/nft.txt"]); n == 0 || n > maxPart {
		t.Errorf("one endless line: %d bytes", n)
	}
}

// TestAnonymous: no address of the machine is left; each is replaced by the same address
// throughout, and common prefixes are preserved.
func TestAnonymous(t *testing.T) {
	m := newMachine(t)
	m.o.Call, m.o.Anonymize = call, true
	m.write("etc/conf.d/web.yaml", "frontends: [\"198.51.100.10:80/tcp\", \"[2001:db8::10]:80/tcp\"]\nmask: 255.255.255.0\nlocal: 127.0.0.1 ::1 0.0.0.0/0\n")
	m.programs["ip address"] = "inet 198.51.100.10/24 brd 198.51.100.255\ninet6 2001:db8::10/64\ninet6 fe80::5eff:fe10:101/64\nlink/ether 02:42:5e:10:01:01 brd ff:ff:ff:ff:ff:ff\nat 10:53:27 today\n"
	files, manifest := m.archive()
	for name, text := range files {
		for _, real := range []string{"198.51.100.", "192.0.2.7", "2001:db8::10", "02:42:5e:10:01:01", "5eff:fe10:101"} {
			if strings.Contains(text, real) {
				t.Errorf("%s has %s", name, real)
			}
		}
	}
	if !manifest.Anonymized {
		t.Error("the manifest does not say so")
	}
	web := files["config/conf.d/web.yaml"]
	for _, same := range []string{"mask: 255.255.255.0", "127.0.0.1 ::1 0.0.0.0/0"} {
		if !strings.Contains(web, same) {
			t.Errorf("no %q in %s", same, web)
		}
	}
	lines := strings.Split(files["network/address.txt"], "\n")
	front := netip.MustParsePrefix(strings.Fields(lines[0])[1])
	if !strings.Contains(web, front.Addr().String()+":80/tcp") {
		t.Errorf("%s is called otherwise in %s", front, web)
	}
	if brd := netip.MustParseAddr(strings.Fields(lines[0])[3]); !front.Contains(brd) {
		t.Errorf("%s is not in %s as the real one is", brd, front)
	}
	if six := netip.MustParsePrefix(strings.Fields(lines[1])[1]); !six.Addr().Is6() || !strings.Contains(web, "["+six.Addr().String()+"]:80/tcp") {
		t.Errorf("%s is called otherwise in %s", six, web)
	}
	if !strings.HasPrefix(lines[2], "inet6 fe80::") || !strings.HasSuffix(lines[3], "ff:ff:ff:ff:ff:ff") || lines[4] != "at 10:53:27 today" {
		t.Errorf("addresses became %q", lines)
	}
}
