// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestDoctorOfKernelParameters sets each kernel parameter to a value that breaks forwarding.
func TestDoctorOfKernelParameters(t *testing.T) {
	p := newPatient(t, "tcx")
	for _, x := range []struct{ name, value, sane, severity, key, word string }{
		{"net.ipv4.ip_forward", "0", "1", "error", "sysctl.forwarding net.ipv4.ip_forward", "Service web"},
		{"net.ipv4.conf.eth0.forwarding", "0", "1", "warning", "sysctl.device_forwarding net.ipv4.conf.eth0.forwarding", "eth0"},
		{"net.ipv4.conf.eth1.rp_filter", "1", "0", "warning", "sysctl.rp_filter net.ipv4.conf.eth1.rp_filter", "Service web"},
		{"net.ipv4.ip_local_port_range", "1024 65535", "32768 60999", "error", "sysctl.ports net.ipv4.ip_local_port_range", "0 ports"},
		{"net.ipv4.ip_local_port_range", "1100 65535", "32768 60999", "warning", "sysctl.ports net.ipv4.ip_local_port_range", "76 ports"},
	} {
		p.ns.Sysctl(t, x.name, x.value)
		p.finds(x.severity, x.key, x.word, "")
		p.ns.Sysctl(t, x.name, x.sane)
		found, _ := p.doctor()
		if _, ok := found[x.key]; ok {
			t.Errorf("%s is found with %s", x.key, x.sane)
		}
	}
	// Loose mode for all devices overrides strict mode for one.
	p.ns.Sysctl(t, "net.ipv4.conf.eth1.rp_filter", "1")
	p.ns.Sysctl(t, "net.ipv4.conf.all.rp_filter", "2")
	if found, _ := p.doctor(); found["sysctl.rp_filter net.ipv4.conf.eth1.rp_filter"].ID != "" {
		t.Error("a loose filter is called strict")
	}
}

// TestDoctorOfIPv6Parameters is like TestDoctorOfKernelParameters, but for a Service over IPv6.
func TestDoctorOfIPv6Parameters(t *testing.T) {
	p := newPatient(t, "tcx")
	p.ns.Addr(t, "eth1", "2001:db8:2::1/64")
	p.far.Addr(t, "far1", "2001:db8:2::2/64")
	p.apply(api.Object{Kind: api.KindService, Name: "web6", Spec: []byte(`{"frontends":["[2001:db8::10]:80/tcp"],"backends":[{"address":"[2001:db8:2::2]:8080"}]}`)})
	for _, x := range []struct{ name, value, sane, severity, key, word string }{
		{"net.ipv6.conf.eth0.forwarding", "0", "1", "warning", "sysctl.device_forwarding net.ipv6.conf.eth0.forwarding", "eth0"},
		{"net.ipv6.conf.eth0.disable_ipv6", "1", "0", "warning", "sysctl.disable_ipv6 net.ipv6.conf.eth0.disable_ipv6", "IPv6 Services"},
		{"net.ipv6.conf.eth0.accept_ra", "1", "2", "note", "sysctl.accept_ra net.ipv6.conf.eth0.accept_ra", "treats as 0"},
		{"net.ipv6.conf.all.forwarding", "0", "1", "error", "sysctl.forwarding net.ipv6.conf.all.forwarding", "Service web6"},
	} {
		p.ns.Sysctl(t, x.name, x.value)
		found, _ := p.doctor()
		wantFinding(t, found, x.key, x.word)
		if f := found[x.key]; f.Severity != x.severity {
			t.Errorf("%s is %s", x.key, f.Severity)
		}
		p.ns.Sysctl(t, x.name, x.sane)
		if found, _ = p.doctor(); found[x.key].ID != "" {
			t.Errorf("%s is found with %s", x.key, x.sane)
		}
	}
}

func TestDoctorOfPaths(t *testing.T) {
	p := newPatient(t, "tcx")
	testnet.Veth(t, testnet.Port{NS: p.ns, Name: "eth2", Addrs: []string{"10.0.3.1/24"}}, testnet.Port{NS: p.far, Name: "far2", Addrs: []string{"10.0.3.2/24"}})
	p.ns.Run(t, "ip", "route", "add", "unreachable", "10.0.9.0/24")
	p.apply(serviceObject("aside", 2, "10.0.3.2:8080"), serviceObject("lost", 3, "10.0.9.2:8080", "10.0.1.2:80"))
	p.finds("note", "routes.aside device eth2 (IPv4)", "no Interface", "")
	p.finds("warning", "routes.missing Service/lost", "10.0.9.2 (no route exists)", "")
}

// TestDoctorOfUnattachedDevices: the doctor reports a device that has an address but no Interface,
// to which rules do not apply, and a device whose packets the kernel does not forward, so that NATs
// do not translate them.
func TestDoctorOfUnattachedDevices(t *testing.T) {
	p := newPatient(t, "tcx")
	testnet.Veth(t, testnet.Port{NS: p.ns, Name: "eth2", Addrs: []string{"10.0.3.1/24"}}, testnet.Port{NS: p.far, Name: "far2"})
	p.apply(
		api.Object{Kind: api.KindFirewallRule, Name: "deny", Spec: []byte(`{"action":"deny","match":{"protocol":"tcp","ports":25}}`)},
		api.Object{Kind: api.KindNAT, Name: "out", Spec: []byte(`{"type":"masquerade","match":{"out":["eth0"]}}`)},
		api.Object{Kind: api.KindService, Name: "drained", Spec: []byte(`{"frontends":["198.51.100.77:80/tcp"],"backends":[{"address":"10.0.1.2:80","state":"draining"}]}`)},
	)
	p.finds("warning", "rules.unseen device eth2", "an address", "")
	found, _ := p.doctor()
	for _, key := range []string{"rules.unseen device eth0", "rules.unseen device lo", "services.no_backend Service/drained"} {
		if found[key].ID != "" {
			t.Errorf("%s is found", key)
		}
	}
	const forwarding = "net.ipv4.conf.eth2.forwarding"
	p.ns.Sysctl(t, forwarding, "0")
	p.finds("warning", "sysctl.device_forwarding "+forwarding, "NAT/out", "")
}

func TestDoctorOfFirewalls(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (.ci/setup bench installs it)")
	}
	p := newPatient(t, "tcx")
	p.ns.Run(t, "nft", "add table inet guard; add chain inet guard onward { type filter hook forward priority 0; policy drop; }")
	p.ns.Run(t, "nft", "add table inet firewalld; add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; }; "+
		"add rule inet firewalld filter_FORWARD ct state established accept; add rule inet firewalld filter_FORWARD counter reject with icmpx admin-prohibited")
	p.ns.Run(t, "nft", "add table inet fine; add chain inet fine onward { type filter hook forward priority 20; policy accept; }; add rule inet fine onward tcp dport 25 drop")
	p.ns.Run(t, "nft", "add table netdev early; add chain netdev early first { type filter hook ingress device eth0 priority 0; policy accept; }")
	p.finds("warning", "firewall.forward nftables chain inet guard onward", "drops packets that none of its rules", "")
	p.finds("note", "firewall.netdev nftables chain netdev early first", "after our programs", "")
	found, _ := p.doctor()
	wantFinding(t, found, "firewall.forward nftables chain inet firewalld filter_FORWARD", "firewall-cmd")
	if _, ok := found["firewall.forward nftables chain inet fine onward"]; ok {
		t.Error("a chain that drops some packets is reported to drop all")
	}
}

// TestDoctorAsAnOrdinaryUser: the doctor reports what the user cannot read, and still reports all
// other findings.
func TestDoctorAsAnOrdinaryUser(t *testing.T) {
	p := newPatient(t, "tcx")
	for _, dir := range []string{p.dir, p.path("..")} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary := copySelf(t)
	cmd := exec.Command(binary, "--config", p.path("loxilightd.yaml"), "--doctor", "--fix")
	cmd.Env = append(os.Environ(), asDaemon+"=1")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"not seen  the daemon\n", "permission denied", "not seen  programs, pins and hooks\n", "lacks CAP_BPF",
		"warning  user nobody\n  what is neither root nor in the group loxilight\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "does not run") {
		t.Errorf("a daemon that is not for this user is called stopped:\n%s", out)
	}
}

// copySelf copies this binary to a place where every user may run it.
func copySelf(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "loxilight-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover in the temporary directory is harmless
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(dir+"/loxilightd", text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir + "/loxilightd"
}

// TestDoctorOfAMuteSocket: a program that does not hold the lock listens on the socket.
func TestDoctorOfAMuteSocket(t *testing.T) {
	s := newSite(t)
	if err := os.MkdirAll(s.path("run"), 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", s.path("run/control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found, _ := s.doctor()
	wantFinding(t, found, "daemon.hung loxilightd", "does not answer")
}
