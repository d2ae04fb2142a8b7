// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// watched is a namespace and the states that Watch has reported for it.
type watched struct {
	t       *testing.T
	ns      *testnet.NS
	idle    atomic.Bool
	watcher *Watcher

	mu     sync.Mutex
	states []State
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, ns: testnet.New(t, "rules")}
	w.call("0")
	f, err := w.ns.Open()
	if err != nil {
		t.Fatal(err)
	}
	w.watcher, err = Watch(int(f.Fd()), Options{
		Changed: func(s State) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.states = append(w.states, s)
		},
		Failed: func(err error) { t.Errorf("cannot be read: %v", err) },
		IsIdle: w.idle.Load,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.watcher.Stop()
		f.Close()
	})
	if s := w.now(); s != (State{}) {
		t.Fatalf("a new namespace has %+v, want nothing", s)
	}
	return w
}

// call sets whether bridged frames pass through the IP rules; false: the kernel has no such
// setting.
func (w *watched) call(value string) (set bool) {
	w.t.Helper()
	w.ns.Do(w.t, func() error {
		for _, file := range callIP {
			err := os.WriteFile(file, []byte(value), 0)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			set = true
		}
		return nil
	})
	return set
}

func (w *watched) now() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states[len(w.states)-1]
}

// expect waits until the reported state has these values, and its Why contains all of why.
func (w *watched) expect(what string, routed, bridged bool, why ...string) {
	w.t.Helper()
	begin := time.Now()
	for time.Since(begin) < 5*time.Second {
		s := w.now()
		right := s.Routed == routed && s.Bridged == bridged
		for _, part := range why {
			right = right && strings.Contains(s.Why, part)
		}
		if right && (len(why) > 0 || s.Why == "") {
			if took := time.Since(begin); took > testnet.OnThisMachine(2*time.Second) {
				w.t.Errorf("%s: known after %s, want it within a second or two", what, took)
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.t.Fatalf("%s: reported %+v, want routed %t, bridged %t, why %q", what, w.now(), routed, bridged, why)
}

// run runs a command in the namespace; the test is skipped if the program does not exist.
func (w *watched) run(command string, args ...string) {
	w.t.Helper()
	need(w.t, command)
	w.ns.Run(w.t, command, args...)
}

func need(t *testing.T, command string) {
	t.Helper()
	if _, err := exec.LookPath(command); err != nil {
		t.Skipf("no %s", command)
	}
}

func (w *watched) nft(rules string) {
	w.t.Helper()
	for _, line := range strings.Split(rules, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			w.run("nft", line)
		}
	}
}

// TestNFTables: base chains in the path of forwarded packets are reported while they have a rule or
// a policy that drops; chains on other paths are ignored.
func TestNFTables(t *testing.T) {
	for name, tt := range map[string]struct {
		empty, rule     string
		routed, bridged bool
		why             string
	}{
		"inet forward":   {"add chain inet t c { type filter hook forward priority 0; }", "add rule inet t c tcp dport 80 drop", true, false, "nftables: chain inet t c (forward) has 1 rule"},
		"ip postrouting": {"add chain ip t c { type nat hook postrouting priority 100; }", "add rule ip t c ip saddr 10.0.0.0/8 masquerade", true, false, "nftables: chain ip t c (postrouting) has 1 rule"},
		"ip6 prerouting": {"add chain ip6 t c { type filter hook prerouting priority 0; }", "add rule ip6 t c meta mark set 7", true, false, "nftables: chain ip6 t c (prerouting) has 1 rule"},
		"bridge forward": {"add chain bridge t c { type filter hook forward priority 0; }", "add rule bridge t c ether type ip drop", false, true, "nftables: chain bridge t c (forward) has 1 rule"},
		"netdev ingress": {"add chain netdev t c { type filter hook ingress device lo priority 0; }", "add rule netdev t c ip protocol tcp drop", true, true, "nftables: chain netdev t c (ingress) has 1 rule"},
		"a policy":       {"add chain inet t c { type filter hook forward priority 0; policy accept; }", "add chain inet t c { type filter hook forward priority 0; policy drop; }", true, false, "nftables: chain inet t c (forward) has the policy drop"},
		"input":          {"add chain inet t c { type filter hook input priority 0; }", "add rule inet t c tcp dport 80 drop", false, false, ""},
		"output":         {"add chain ip t c { type filter hook output priority 0; }", "add rule ip t c tcp dport 80 drop", false, false, ""},
		"no hook":        {"add chain ip t c", "add rule ip t c tcp dport 80 drop", false, false, ""},
		"ARP":            {"add chain arp t c { type filter hook input priority 0; }", "add rule arp t c drop", false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watch(t)
			family := strings.Fields(tt.empty)[2]
			w.nft("add table " + family + " t\n" + tt.empty)
			w.nft("add table inet other\nadd chain inet other c { type filter hook forward priority 0; policy drop; }")
			w.expect("another table", true, false, "chain inet other c (forward) has the policy drop")
			w.nft("delete table inet other") // from here on only t remains
			w.expect("no rules", false, false)
			w.nft(tt.rule)
			if tt.why == "" {
				w.nft("add table inet other\nadd chain inet other c { type filter hook forward priority 0; policy drop; }")
				w.expect("beside another", true, false, "chain inet other c (forward) has the policy drop")
				if s := w.now(); strings.Contains(s.Why, " t c ") {
					t.Errorf("%q counts what forwarded packets do not pass", s.Why)
				}
				return
			}
			w.expect("a rule", tt.routed, tt.bridged, tt.why)
			w.nft("delete table " + family + " t")
			w.expect("deleted", false, false)
		})
	}
}

// TestLookWhileIdle: while the watcher is idle, changes without a notification are found by Look.
func TestLookWhileIdle(t *testing.T) {
	need(t, "iptables-legacy")
	w := watch(t)
	if out, err := w.ns.TryRun("iptables-legacy", "-S"); err != nil { // creates the table by listing it
		t.Skipf("iptables-legacy: %v: %s", err, out)
	}
	w.idle.Store(true)
	w.run("iptables-legacy", "-A", "FORWARD", "-p", "tcp", "--dport", "80", "-j", "DROP")
	w.watcher.Look()
	w.expect("a rule", true, false, "chain FORWARD of table filter has rules")
	w.run("iptables-legacy", "-F", "FORWARD")
	w.watcher.Look()
	w.expect("flushed", false, false)
}

// TestIPTables: rules and policies are reported for both implementations of iptables.
func TestIPTables(t *testing.T) {
	for name, why := range map[string][2]string{
		"iptables-legacy":  {"iptables: chain FORWARD of table filter has rules", "iptables: chain FORWARD of table filter has the policy DROP"},
		"ip6tables-legacy": {"ip6tables: chain FORWARD of table filter has rules", "ip6tables: chain FORWARD of table filter has the policy DROP"},
		"iptables-nft":     {"nftables: chain ip filter FORWARD (forward) has 1 rule", "nftables: chain ip filter FORWARD (forward) has the policy drop"},
		"ip6tables-nft":    {"nftables: chain ip6 filter FORWARD (forward) has 1 rule", "nftables: chain ip6 filter FORWARD (forward) has the policy drop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			need(t, name)
			w := watch(t)
			if out, err := w.ns.TryRun(name, "-S"); err != nil { // creates the table by listing it
				t.Skipf("%s: %v: %s", name, err, out)
			}
			w.run(name, "-A", "INPUT", "-p", "tcp", "-j", "DROP")
			w.run(name, "-A", "FORWARD", "-p", "tcp", "--dport", "80", "-j", "DROP")
			w.expect("a rule", true, false, why[0])
			if s := w.now(); strings.Contains(s.Why, "INPUT") {
				t.Errorf("%q counts what forwarded packets do not pass", s.Why)
			}
			w.run(name, "-F", "FORWARD")
			w.expect("flushed", false, false)
			w.run(name, "-P", "FORWARD", "DROP")
			w.expect("a policy", true, false, why[1])
			w.run(name, "-P", "FORWARD", "ACCEPT")
			w.expect("accepts", false, false)
			w.run(name, "-t", "mangle", "-A", "PREROUTING", "-p", "tcp", "-j", "MARK", "--set-mark", "7")
			w.expect("another table", true, false, "PREROUTING")
		})
	}
}

// TestIPsec: policies for outgoing or forwarded packets are reported; others are not.
func TestIPsec(t *testing.T) {
	w := watch(t)
	need(t, "ip")
	policy := func(what, dir string) {
		t.Helper()
		if out, err := w.ns.TryRun("ip", "xfrm", "policy", what, "src", "10.0.0.0/24", "dst", "10.0.1.0/24", "dir", dir); err != nil {
			t.Skipf("ip xfrm: %v: %s", err, out)
		}
	}
	policy("add", "in")
	policy("add", "fwd")
	w.expect("forwarded", true, false, "xfrm: an IPsec policy")
	policy("add", "out")
	w.expect("and what leaves", true, false, "xfrm: 2 IPsec policies")
	policy("delete", "out")
	policy("delete", "fwd")
	w.expect("only what comes in", false, false)
}

// TestBridgesThatCallIP: if br_netfilter is enabled, for all bridges or for one, bridged frames
// pass through the IP rules.
func TestBridgesThatCallIP(t *testing.T) {
	w := watch(t)
	w.nft("add table ip t\nadd chain ip t c { type filter hook forward priority 0; policy drop; }")
	w.expect("not configured to", true, false, "policy drop")
	if !w.call("1") {
		t.Skip("no br_netfilter")
	}
	w.expect("configured to", true, true, "policy drop")
	w.call("0")
	w.expect("no longer", true, false, "policy drop")
	w.run("ip", "link", "add", "br0", "type", "bridge", "nf_call_ip6tables", "1")
	w.expect("a bridge of its own", true, true, "policy drop")
	w.run("ip", "link", "set", "br0", "type", "bridge", "nf_call_ip6tables", "0")
	w.expect("no longer either", true, false, "policy drop")
}

// TestStateOf: if br_netfilter is enabled, bridged frames pass through the IP rules; long lists are
// abbreviated.
func TestStateOf(t *testing.T) {
	ip := finding{routed: true, ip: true, why: "a"}
	frame := finding{bridged: true, why: "b"}
	for name, tt := range map[string]struct {
		found []finding
		call  bool
		want  State
	}{
		"nothing":        {nil, true, State{}},
		"IP":             {[]finding{ip}, false, State{Routed: true, Why: "a"}},
		"IP, bridges":    {[]finding{ip}, true, State{Routed: true, Bridged: true, Why: "a"}},
		"frames":         {[]finding{frame}, true, State{Bridged: true, Why: "b"}},
		"both":           {[]finding{frame, ip}, false, State{Routed: true, Bridged: true, Why: "b; a"}},
		"more than some": {[]finding{ip, frame, ip, frame, ip}, false, State{Routed: true, Bridged: true, Why: "a; b; a; and 2 more"}},
	} {
		if got := stateOf(tt.found, tt.call); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestDrops: chains that drop by their policy are reported by name, whatever rules they have;
// chains that do not drop routed packets are not reported.
func TestDrops(t *testing.T) {
	ns := testnet.New(t, "drops")
	ns.Run(t, "nft", `add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; };
		add rule ip filter FORWARD tcp dport 22 accept;
		add table inet mine; add chain inet mine f { type filter hook forward priority 5; policy drop; };
		add chain inet mine in { type filter hook input priority 0; policy drop; };
		add chain inet mine ok { type filter hook forward priority 6; policy accept; }; add rule inet mine ok drop;
		add table bridge mine; add chain bridge mine f { type filter hook forward priority 0; policy drop; };`)
	want := []string{"nftables chain inet mine f", "nftables chain ip filter FORWARD"}
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		if _, err := ns.TryRun(tool, "-P", "FORWARD", "DROP"); err != nil {
			t.Logf("without %s: %v", tool, err)
			continue
		}
		ns.Run(t, tool, "-A", "FORWARD", "-p", "tcp", "-j", "ACCEPT")
		ns.Run(t, tool, "-P", "INPUT", "DROP")
		want = append(want, tool+" chain FORWARD")
	}
	var got []string
	ns.Do(t, func() (err error) {
		got, err = Drops()
		return err
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestReadAgain: a file is read as it is now, in the namespace in which it was opened, also after it could
// not be read.
func TestReadAgain(t *testing.T) {
	testnet.RequireRoot(t)
	ns := testnet.New(t, "files")
	ns.Run(t, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
	const path = "/proc/sys/net/ipv4/conf/d0/accept_local"
	f := files{}
	defer f.close()
	expect := func(want string, exists bool) {
		t.Helper()
		ns.Do(t, func() error {
			content, err := f.read(path)
			if string(content) != want || errors.Is(err, fs.ErrNotExist) == exists {
				t.Errorf("got %q, %v, want %q", content, err, want)
			}
			return nil
		})
	}
	expect("0\n", true)
	ns.Sysctl(t, "net.ipv4.conf.d0.accept_local", "1")
	expect("1\n", true)
	if content, err := f.read(path); string(content) != "1\n" {
		t.Errorf("in another namespace: %q, %v", content, err)
	}
	ns.Run(t, "ip", "link", "del", "d0")
	expect("", false)
	ns.Run(t, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
	expect("0\n", true)
	ns.Run(t, "ip", "link", "del", "d0")
	ns.Run(t, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
	ns.Sysctl(t, "net.ipv4.conf.d0.accept_local", "1")
	expect("1\n", true)
}
