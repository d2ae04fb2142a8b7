// SPDX-License-Identifier: Apache-2.0

package config

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/memory"
)

func TestParseEveryKey(t *testing.T) {
	got, err := Parse("test.yaml", []byte(`
instance: blue
runDir: /run/b/
stateDir: /var/lib/b
pinDir: /sys/fs/bpf/b
objectDir: /etc/b
switch: {namespace: host, hostDevice: h0, switchDevice: ""}
tables: {connections: 11, services: 13, backends: 14, affinity: 16, ranges: 17, rules: 18, prefixes: 19, entities: 20}
datapath:
  backend: fake
  attach: tc
  sweepInterval: 250ms
cni: {ipamPlugins: [/srv/cni/], reservedHostPorts: [22, 7000-7010]}
log: {level: debug, format: json}
metrics: {listen: ""}
history: {revisions: 7, bytes: 3MiB}
firewall:
  exempt:
    - {source: [192.0.2.0/24, "2001:db8::1"], protocol: tcp, ports: [22, 8000-8010], in: eth0}
    - in: [eth1, eth2]
      destination: 192.0.2.7
policy: {nameGrace: 90s, failsafe: {in: [sctp/7000-7010, "2001:db8::/32"], out: []}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Instance: "blue", RunDir: "/run/b", StateDir: "/var/lib/b", PinDir: "/sys/fs/bpf/b", ObjectDir: "/etc/b",
		SwitchNamespace: "host", HostDevice: "h0",
		Tables: datapath.Tables{
			Connections: 11, ConnectionsMin: 11, Services: 13, Backends: 14, Affinity: 16, Ranges: 17, Rules: 18, Prefixes: 19, Entities: 20,
		},
		HistoryRevisions: 7, HistoryBytes: 3 << 20,
		Exempt: []datapath.Match{
			{
				Source: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}, Protocols: []datapath.Protocol{datapath.TCP},
				Ports: []datapath.PortRange{{First: 22, Last: 22}, {First: 8000, Last: 8010}}, In: []string{"eth0"},
			},
			{In: []string{"eth1", "eth2"}, Destination: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}},
		},
		IPAMPlugins: []string{"/srv/cni"}, ReservedHostPorts: []datapath.PortRange{{First: 22, Last: 22}, {First: 7000, Last: 7010}},
		Failsafe: [2][]policy.Rule{{
			{ID: "sctp/7000-7010", Ports: []policy.Port{{Protocol: policy.SCTP, First: 7000, Last: 7010}}},
			{ID: "2001:db8::/32", Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}}}},
		}, nil},
		Backend: "fake", Attach: "tc", SweepInterval: 250 * time.Millisecond, NameGrace: 90 * time.Second,
		LogLevel: slog.LevelDebug, LogFormat: "json", Memory: machineMemory(), AutoSizes: []string{},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
}

func TestDefaults(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "switch:\ntables:\n"} {
		got, err := Parse("test.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if d := cmp.Diff(Default("default"), got); d != "" {
			t.Errorf("%q (-want +got):\n%s", text, d)
		}
	}
	got, err := Parse("test.yaml", []byte("stateDir: /srv/b\ninstance: b"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default("b")
	want.StateDir = "/srv/b"
	if d := cmp.Diff(want, got); d != "" || want.RunDir != "/run/loxilight-b" {
		t.Errorf("folders of an instance (-want +got):\n%s", d)
	}
}

func TestErrorsNameLineAndKey(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"runDir: /run/x\nrunDirs: /run/y\n", "t.yaml:2: unknown key runDirs; known keys: instance, runDir,"},
		{"tables:\n  connection: 5\n", "t.yaml:2: unknown key tables.connection; known keys:"},
		{"a: &x 1\n", "t.yaml:1: unknown key a"},
		{"tables:\n  connections: many\n", `t.yaml:2: tables.connections: "many" is not a valid size`},
		{"tables: {services: 0}\n", `t.yaml:1: tables.services: "0" is not a valid size`},
		{"tables: {services: -1}\n", `t.yaml:1: tables.services: "-1" is not a valid size`},
		{"tables: {services: 999999999}\n", `t.yaml:1: tables.services: "999999999" is not a valid size`},
		{"tables: 5\n", "t.yaml:1: tables: want keys and values"},
		{"- a\n", "t.yaml:1: want keys and values"},
		{"\nrunDir: run\n", `t.yaml:2: runDir: "run" is not a valid directory: want an absolute path`},
		{"runDir: /" + strings.Repeat("x", 90) + "\n", "is too long for sockets in it: at most 90 bytes"},
		{"runDir: [/a]\n", "t.yaml:1: runDir: want a single value"},
		{"runDir:\n", "t.yaml:1: runDir: want a single value"},
		{"pinDir: /\n", `t.yaml:1: pinDir: "/" is not a valid directory`},
		{"instance: A b\n", `t.yaml:1: instance: "A b" is not a valid name`},
		{"log: {level: loud}\n", `t.yaml:1: log.level: "loud" is not a valid level: want debug, info, warn or error`},
		{"log: {format: xml}\n", `t.yaml:1: log.format: "xml" is not one of text, json`},
		{"switch: {namespace: ../x}\n", `t.yaml:1: switch.namespace: "../x" is not a valid name of a network namespace`},
		{"datapath: {sweepInterval: 5}\n", `t.yaml:1: datapath.sweepInterval: "5" is not a valid interval`},
		{"metrics: {listen: \":9\"}\n", "t.yaml:1: metrics.listen: this version has no metrics"},
		{"history: {revisions: 0}\n", `t.yaml:1: history.revisions: "0" is not a valid number of revisions: want 1 to 100000`},
		{"history: {revisions: many}\n", `t.yaml:1: history.revisions: "many" is not a valid number of revisions`},
		{"history: {bytes: 64}\n", `t.yaml:1: history.bytes: "64" is not a valid size: want 64KiB to 4GiB`},
		{"history: {bytes: 64MB}\n", `t.yaml:1: history.bytes: "64MB" is not a valid size`},
		{"history: {bytes: 99999999GiB}\n", `t.yaml:1: history.bytes: "99999999GiB" is not a valid size`},
		{"policy: {nameGrace: 25h}\n", `t.yaml:1: policy.nameGrace: "25h" is not a valid time: want whole seconds from 0s to 24h, such as 60s`},
		{"policy: {nameGrace: 100ms}\n", `"100ms" is not a valid time`},
		{"policy: {failsafe: {in: [ssh]}}\n", `t.yaml:1: policy.failsafe.in: "ssh" is neither a port, such as tcp/22, nor an address or prefix`},
		{"policy: {failsafe: {in: [tcp/22, tcp/22]}}\n", `policy.failsafe.in: "tcp/22" is listed twice`},
		{"policy: {failsafe: {out: [tcp]}}\n", `policy.failsafe.out: "tcp" lacks a port: list a port such as tcp/22`},
		{"policy: {failsafe: {out: [icmp/8]}}\n", `policy.failsafe.out: "icmp" has no ports`},
		{"policy: {failsafe: {out: [udp/0]}}\n", `policy.failsafe.out: "0" is not a valid port`},
		{"policy: {failsafe: {out: [10.0.0.1/8]}}\n", `has bits set beyond its prefix length; use 10.0.0.0/8`},
		{"policy: {failsafe: {both: [tcp/22]}}\n", "t.yaml:1: unknown key policy.failsafe.both"},
		{"policy: {failsafe: [tcp/22]}\n", "t.yaml:1: policy.failsafe: want keys and values"},
		{"policy:\n  failsafe:\n    in:\n", "t.yaml:3: policy.failsafe.in: want a value, or a list of them"},
		{"firewall: {exempt: all}\n", "t.yaml:1: firewall.exempt: want a list of at most 64 exemptions"},
		{"firewall: {exempt: {in: eth0}}\n", "t.yaml:1: firewall.exempt: want a list"},
		{"firewall: {exempts: []}\n", "t.yaml:1: unknown key firewall.exempts"},
		{"firewall:\n  exempt:\n    - eth0\n", "t.yaml:3: firewall.exempt[0]: want keys and values: destination, in, ports, protocol, source"},
		{"firewall:\n  exempt:\n    - {}\n", "t.yaml:3: firewall.exempt[0]: is empty, so that no firewall rule would have any effect"},
		{"firewall:\n  exempt:\n    - in: eth0\n      inn: eth1\n", "t.yaml:4: unknown key firewall.exempt[0].inn; known keys: destination, in,"},
		{"firewall:\n  exempt:\n    - in: eth0\n      in: eth1\n", "t.yaml:4: firewall.exempt[0].in is set twice"},
		{"firewall:\n  exempt:\n    - in: []\n", "t.yaml:3: firewall.exempt[0].in: want 1 to 64 values"},
		{"firewall:\n  exempt:\n    - in:\n", "t.yaml:3: firewall.exempt[0].in: want a value, or a list of them"},
		{"firewall: {exempt: [{in: a/b}]}\n", `t.yaml:1: firewall.exempt[0].in: "a/b" is not a valid device name`},
		{"firewall: {exempt: [{in: [eth0, eth0]}]}\n", `firewall.exempt[0].in: "eth0" is listed twice`},
		{"firewall: {exempt: [{source: [10.0.0.0/8,\n 10.0.0]}]}\n", `t.yaml:2: firewall.exempt[0].source: "10.0.0" is not a valid address or prefix`},
		{"firewall: {exempt: [{source: 10.0.0.1/8}]}\n", `firewall.exempt[0].source: "10.0.0.1/8" has bits set beyond its prefix length; use 10.0.0.0/8`},
		{"firewall: {exempt: [{source: '::ffff:10.0.0.1'}]}\n", "is an IPv4 address in IPv6"},
		{"firewall: {exempt: [{source: 10.0.0.1, destination: '2001:db8::1'}]}\n", "firewall.exempt[0]: source and destination have different address families"},
		{"firewall: {exempt: [{ports: 22}]}\n", "firewall.exempt[0]: ports without a protocol: set protocol to tcp, udp or sctp"},
		{"firewall: {exempt: [{ports: 22, in: eth0}]}\n", "the protocol has no ports"},
		{"firewall: {exempt: [{ports: 22, protocol: icmp}]}\n", "the protocol has no ports"},
		{"firewall: {exempt: [{protocol: tcp, ports: ssh}]}\n", `firewall.exempt[0].ports: "ssh" is not a valid port: want 1 to 65535`},
		{"firewall: {exempt: [{protocol: tcp, ports: 20-10}]}\n", `"20-10" is not a valid port`},
		{"firewall: {exempt: [{protocol: tcp, ports: 0}]}\n", `"0" is not a valid port`},
		{"firewall: {exempt: [{protocol: tcp, ports: 65536}]}\n", `"65536" is not a valid port`},
		{"firewall: {exempt: [{protocol: any}]}\n", `firewall.exempt[0].protocol: "any" is not a valid protocol`},
		{"cni: {ipamPlugins: [bin]}\n", `t.yaml:1: cni.ipamPlugins: "bin" is not a valid directory: want an absolute path`},
		{"cni: {ipamPlugins: [/a, /a]}\n", `t.yaml:1: cni.ipamPlugins: "/a" is listed twice`},
		{"cni: {reservedHostPorts: [22, 0]}\n", `t.yaml:1: cni.reservedHostPorts: "0" is not a valid port`},
		{"cni: {reservedHostPorts: }\n", `t.yaml:1: cni.reservedHostPorts: want a value, or a list of them`},
		{"log: {level: info}\nruns: 1\nlog: {level: warn}\n", "t.yaml:3: log is already set on line 1"},
		{"log: {level: info\n", "t.yaml:1: did not find expected ',' or '}'"},
		{"---\nrunDir: /a\n---\nrunDir: /b\n", "t.yaml:3: only one YAML document"},
		{"runDir: /a\n\tb: c\n", "t.yaml:2: found a tab character"},
	} {
		_, err := Parse("t.yaml", []byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q:\n got %v\nwant %s", tt.text, err, tt.want)
		}
	}
}

// FuzzParse checks that each accepted configuration is valid.
func FuzzParse(f *testing.F) {
	f.Add([]byte("instance: b\ntables: {services: 5}\nlog: {level: warn}\n"))
	f.Add([]byte("runDir: *x\n? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("configuration %v and error %v", c, err)
		}
		if c == nil {
			return
		}
		for _, dir := range []string{c.RunDir, c.StateDir, c.PinDir, c.ObjectDir} {
			if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || strings.ContainsRune(dir, 0) {
				t.Errorf("folder %q", dir)
			}
		}
		if c.Tables.Connections == 0 || c.Instance == "" || c.SwitchNamespace == "" {
			t.Errorf("%+v", c)
		}
	})
}

func TestRestartNeeded(t *testing.T) {
	a, b := Default("default"), Default("default")
	b.Exempt = []datapath.Match{{In: []string{"eth0"}}} // can change at run time
	b.LogLevel, b.Tables.Services, b.PinDir = slog.LevelDebug, 5, "/sys/fs/bpf/other"
	if got, want := a.RestartNeeded(b), []string{"pinDir", "tables.services"}; !slices.Equal(got, want) {
		t.Errorf("restart needed for %v, want %v", got, want)
	}
}

// TestInstalledFile checks that the packaged file contains the defaults, as stated in its comments.
func TestInstalledFile(t *testing.T) {
	const file = "../../../configs/loxilightd.yaml"
	got, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Default("default"), got); d != "" {
		t.Errorf("%s is not the defaults (-default +file):\n%s", file, d)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range schema {
		_, last, _ := strings.Cut("."+k.name, ".")
		if i := strings.LastIndex(last, "."); i >= 0 {
			last = last[i+1:]
		}
		if !strings.Contains(string(data), last+":") {
			t.Errorf("%s does not mention %s", file, k.name)
		}
	}
}

// TestManualPage compares the manual page with the existing keys.
func TestManualPage(t *testing.T) {
	const file = "../../../docs/man/loxilightd.yaml.5"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, word := range strings.FieldsFunc(string(data), func(r rune) bool { return strings.ContainsRune(" \n\",", r) }) {
		said[word] = true
	}
	for _, k := range schema {
		if !said[k.name] {
			t.Errorf("%s does not say what %s is", file, k.name)
		}
	}
}

func TestLoadOfWhatIsNotThere(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "no.yaml")); err == nil || !strings.Contains(err.Error(), "no.yaml") {
		t.Errorf("error %v, want an error that names the file", err)
	}
}

// TestAutoSizes: table sizes depend on the machine's memory, and a configured number
// overrides one size without changing the others.
func TestAutoSizes(t *testing.T) {
	gib := Memory{Bytes: 1 << 30, From: "machine"}
	got, err := parse("t.yaml", []byte("tables: {connections: 70000, affinity: auto}\ninstance: a"), gib)
	if err != nil {
		t.Fatal(err)
	}
	want := datapath.TablesFor(1 << 30)
	want.Connections, want.ConnectionsMin = 70000, 70000
	if d := cmp.Diff(want, got.Tables); d != "" {
		t.Errorf("sizes (-want +got):\n%s", d)
	}
	auto := []string{"tables.services", "tables.backends", "tables.affinity", "tables.ranges", "tables.rules", "tables.prefixes", "tables.entities"}
	if !slices.Equal(got.AutoSizes, auto) || got.Memory != gib {
		t.Errorf("%v by %v, want %v by %v", got.AutoSizes, got.Memory, auto, gib)
	}
	if m := machineMemory(); m.Bytes < 64<<20 || m != machineMemory() {
		t.Errorf("memory of this machine: %v", m)
	}
}

// TestMemoryOfCgroup: the lowest limit among the cgroup and its parents applies.
func TestMemoryOfCgroup(t *testing.T) {
	root := t.TempDir()
	for dir, max := range map[string]string{"": "", "system.slice": "700000000\n", "system.slice/x.service": "max\n", "low.slice": "200000000\n"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if max == "" {
			continue // the root has no limit
		}
		if err := os.WriteFile(filepath.Join(root, dir, "memory.max"), []byte(max), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		own  string
		want uint64
	}{
		{"0::/system.slice/x.service\n", 700000000},
		{"12:cpu:/low.slice\n0::/system.slice/x.service\n", 700000000},
		{"0::/low.slice\n", 4 * (200000000 - ownMemory)}, // for the daemon alone
		{"0::/other\n", 1 << 30},
		{"0::/\n", 1 << 30},
		{"12:memory:/low.slice\n", 1 << 30},
		{"0::relative\n", 1 << 30},
		{"", 1 << 30},
	} {
		m := Memory{1 << 30, "machine"}.limited(memory.GroupsIn(tt.own, root))
		if m.Bytes != tt.want || (m.From == "machine") != (tt.want == 1<<30) {
			t.Errorf("%q: %v, want %d", tt.own, m, tt.want)
		}
	}
	m := Memory{300, "machine"}.limited(memory.GroupsIn("0::/low.slice\n", root))
	if m.Bytes != 300 {
		t.Errorf("a limit above what there is counts: %v", m)
	}
}

// TestSizeRange: the number of connections is one number, or a smallest and a largest one.
func TestSizeRange(t *testing.T) {
	gib := Memory{Bytes: 16 << 30, From: "machine"}
	for _, tt := range []struct {
		text        string
		least, most uint32
		refused     string
	}{
		{"{min: 65536, max: 4194304}", 65536, 4194304, ""},
		{"{max: 7, min: 7}", 7, 7, ""},
		{"5000", 5000, 5000, ""},
		{"auto", 65536, 1 << 20, ""},
		{"{min: 65536}", 0, 0, "want both min and max"},
		{"{min: 8, max: 7}", 0, 0, "min not larger than max"},
		{"{min: 0, max: 7}", 0, 0, `"0" is not a valid size`},
		{"{min: 1, max: 7, most: 9}", 0, 0, "unknown key most"},
		{"[1, 2]", 0, 0, "or {min: 65536, max: 4194304}"},
		{"many", 0, 0, "or {min: 65536, max: 4194304}"},
	} {
		c, err := parse("t.yaml", []byte("tables: {connections: "+tt.text+"}"), gib)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), "tables.connections") || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, want an error with %q", tt.text, err, tt.refused)
			}
			continue
		}
		if err != nil || c.Tables.ConnectionsMin != tt.least || c.Tables.Connections != tt.most {
			t.Errorf("%s: %v, %v; want %d to %d", tt.text, c, err, tt.least, tt.most)
		} else if auto := slices.Contains(c.AutoSizes, "tables.connections"); auto != (tt.text == "auto") {
			t.Errorf("%s: chosen by memory: %t", tt.text, auto)
		}
	}
}
