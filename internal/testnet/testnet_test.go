// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// routed is a client and a server with a router between them:
//
//	client 192.0.2.17 ── 192.0.2.1 router 198.51.100.1 ── 198.51.100.34 server
//	    2001:db8:1::17      2001:db8:1::1   2001:db8:2::1      2001:db8:2::34
func routed(t *testing.T) (client, router, server *NS) {
	client, router, server = New(t, "client"), New(t, "router"), New(t, "server")
	Veth(t, Port{NS: client, Name: "eth0", Addrs: []string{"192.0.2.17/24", "2001:db8:1::17/64"}},
		Port{NS: router, Name: "left", Addrs: []string{"192.0.2.1/24", "2001:db8:1::1/64"}})
	Veth(t, Port{NS: server, Name: "eth0", Addrs: []string{"198.51.100.34/24", "2001:db8:2::34/64"}, MAC: "02:00:00:00:05:34"},
		Port{NS: router, Name: "right", Addrs: []string{"198.51.100.1/24", "2001:db8:2::1/64"}, MTU: 1400})
	router.Forward(t)
	for _, gateway := range []string{"192.0.2.1", "2001:db8:1::1"} {
		client.Route(t, "default", gateway)
	}
	for _, gateway := range []string{"198.51.100.1", "2001:db8:2::1"} {
		server.Route(t, "default", gateway)
	}
	return client, router, server
}

func TestTrafficThroughARouter(t *testing.T) {
	client, _, server := routed(t)
	for _, addr := range []string{"198.51.100.34", "[2001:db8:2::34]"} {
		t.Run(addr, func(t *testing.T) {
			tcp := server.ServeTCP(t, addr+":7", "echo")
			udp := server.ServeUDP(t, addr+":7", "echo")
			server.ServeHTTP(t, addr+":80", "web")

			c, err := client.Dial("tcp", "", addr+":7", 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := exchange(t, c, "hello\n", 2); got != "echo\nhello\n" {
				t.Errorf("TCP: got %q", got)
			}
			u, err := client.Dial("udp", "", addr+":7", 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			if got := exchange(t, u, "hello\n", 1); got != "echo hello\n" {
				t.Errorf("UDP: got %q", got)
			}
			r, err := client.HTTPClient(5 * time.Second).Get("http://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			body, err := io.ReadAll(r.Body)
			if err != nil || !strings.HasPrefix(string(body), "web ") {
				t.Errorf("HTTP: got %q, %v", body, err)
			}
			if tcp.Seen.Load() != 1 || udp.Seen.Load() != 1 || len(tcp.Clients()) != 1 {
				t.Errorf("TCP saw %d from %v, UDP %d, want 1", tcp.Seen.Load(), tcp.Clients(), udp.Seen.Load())
			}
		})
	}
}

func exchange(t *testing.T, c io.ReadWriter, send string, lines int) (got string) {
	t.Helper()
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for range lines {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		got += line
	}
	return got
}

func TestDialFromChosenPort(t *testing.T) {
	client, _, server := routed(t)
	server.ServeTCP(t, "198.51.100.34:7", "echo")
	for range 3 {
		c, err := client.Dial("tcp", "192.0.2.17:40961", "198.51.100.34:7", 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.LocalAddr().String(); got != "192.0.2.17:40961" {
			t.Errorf("dialled from %s", got)
		}
		// A reset leaves no TIME_WAIT state, which would block the port.
		if err := c.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// TestWire: without checksum offload, packets on the wire are complete; MACs are the requested
// ones.
func TestWire(t *testing.T) {
	client, router, server := routed(t)
	client.Offload(t, "eth0", false, TxChecksum)
	wire := server.Wire(t, "eth0")
	server.ServeUDP(t, "198.51.100.34:7", "echo")
	c, err := client.Dial("udp", "", "198.51.100.34:7", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exchange(t, c, "hello\n", 1)
	frame := wire.Await(t, 5*time.Second, "the datagram on the wire", func(b []byte) bool {
		p := testpkt.Parse(b)
		return p.UDP != nil && p.UDP.Destination == 7
	})
	if err := testpkt.Check(frame); err != nil {
		t.Errorf("%v\n%s", err, testpkt.Parse(frame))
	}
	if got := server.MAC(t, "eth0"); got != [6]byte{2, 0, 0, 0, 5, 0x34} || testpkt.Parse(frame).Ethernet.Destination != got {
		t.Errorf("server's MAC is %x", got)
	}
	left := client.Wire(t, "eth0")
	left.Send(t, testpkt.Build(
		testpkt.Ethernet{Source: client.MAC(t, "eth0"), Destination: router.MAC(t, "left")},
		testpkt.IPv4{Source: netip.MustParseAddr("192.0.2.17"), Destination: netip.MustParseAddr("198.51.100.34")},
		testpkt.UDP{Source: 4660, Destination: 7}, testpkt.Payload("made by hand")))
	left.Await(t, 5*time.Second, "an answer to the frame made by hand", func(b []byte) bool {
		p := testpkt.Parse(b)
		return p.UDP != nil && p.UDP.Destination == 4660 && string(p.Payload) == "echo made by hand"
	})
}

func TestNeighbourAndSysctl(t *testing.T) {
	client, _, _ := routed(t)
	client.Neighbour(t, "eth0", "192.0.2.99", [6]byte{2, 0, 0, 0, 0, 9})
	client.Neighbour(t, "eth0", "2001:db8:1::99", [6]byte{2, 0, 0, 0, 0, 9})
	client.Sysctl(t, "net.ipv4.tcp_syn_retries", "3")
	client.Do(t, func() error {
		b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_syn_retries")
		if err == nil && string(b) != "3\n" {
			err = fmt.Errorf("tcp_syn_retries is %q", b)
		}
		return err
	})
	if b, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_syn_retries"); string(b) == "3\n" {
		t.Error("the parameter changed outside the namespace")
	}
}

func TestProcess(t *testing.T) {
	ns := New(t, "proc")
	link, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	p := ns.Start(t, "sh", "-c", `trap 'echo bye; exit 3' TERM; readlink /proc/self/ns/net; while :; do sleep 0.05; done`)
	Eventually(t, 5*time.Second, "the program's first line", func() bool { return strings.Contains(p.Output(), "\n") })
	if strings.HasPrefix(p.Output(), link) {
		t.Errorf("the program runs in %s, the namespace of the test", link)
	}
	p.Signal(syscall.SIGTERM)
	if code, err := p.Wait(5 * time.Second); code != 3 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	p.Kill() // a second Kill is harmless
	if !strings.HasSuffix(p.Output(), "bye\n") {
		t.Errorf("output %q", p.Output())
	}
	if out, err := ns.TryRun("sh", "-c", "echo out; echo wrong >&2; exit 1"); out != "out\n" || err == nil || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("TryRun: %q, %v", out, err)
	}
}

// TestNothingIsLeft: a test leaves no namespace, mount or program behind.
func TestNothingIsLeft(t *testing.T) {
	var ns *NS
	var p *Process
	var pins string
	t.Run("inner", func(t *testing.T) {
		ns = New(t, "gone")
		p = ns.Start(t, "sleep", "600")
		pins = BPFFS(t)
		if out := mounts(t); !strings.Contains(out, pins+" bpf") || !strings.Contains(out, ns.Path()) {
			t.Errorf("not mounted:\n%s", out)
		}
	})
	for _, path := range []string{ns.Path(), pins, fmt.Sprintf("/proc/%d", p.PID())} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if out := mounts(t); strings.Contains(out, pins) || strings.Contains(out, ns.Name()) {
		t.Errorf("still mounted:\n%s", out)
	}
}

func mounts(t *testing.T) string {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestClearLeftovers: leftovers of a killed test are removed; resources of a running test stay.
func TestClearLeftovers(t *testing.T) {
	RequireRoot(t)
	done := exec.Command("true")
	if err := done.Run(); err != nil {
		t.Fatal(err)
	}
	mine := New(t, "stays")
	dead := fmt.Sprintf("%s%d-1-dead", namePrefix, done.Process.Pid)
	for _, dir := range []string{netnsDir, runDir} {
		path := filepath.Join(dir, dead)
		var err error
		if dir == netnsDir {
			err = os.WriteFile(path, nil, 0o444)
		} else if err = os.Mkdir(path, 0o700); err == nil {
			err = syscall.Mount("bpf", path, "bpf", 0, "")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	clearLeftovers(t)
	for _, dir := range []string{netnsDir, runDir} {
		if _, err := os.Stat(filepath.Join(dir, dead)); !os.IsNotExist(err) {
			t.Errorf("%s/%s is still there: %v", dir, dead, err)
		}
	}
	if _, err := os.Stat(mine.Path()); err != nil {
		t.Errorf("a namespace in use is gone: %v", err)
	}
}

// TestBeforeTheFirstIPNetns: a namespace created before the first use of ip netns is removed
// properly on a machine whose /run is empty, as after a boot.
func TestBeforeTheFirstIPNetns(t *testing.T) {
	const inside = "TESTNET_NEW_MACHINE"
	RequireRoot(t)
	if os.Getenv(inside) == "" {
		cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount -t tmpfs tmpfs /run && exec "$0" "$@"`,
			os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	name := UniqueName("early")
	MakeNamed(t, name)
	for _, verb := range []string{"add", "delete"} {
		if out, err := exec.Command("ip", "netns", verb, "other").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	DeleteNamed(t, name)
	path := filepath.Join(netnsDir, name)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestBridge(t *testing.T) {
	lan := New(t, "lan")
	var machines []*NS
	for i := range 3 {
		ns := New(t, fmt.Sprintf("m%d", i))
		Veth(t, Port{NS: lan, Name: fmt.Sprintf("port%d", i)}, Port{NS: ns, Name: "eth0", Addrs: []string{fmt.Sprintf("192.0.2.%d/24", 11+i)}})
		machines = append(machines, ns)
	}
	lan.Bridge(t, "br0", "port0", "port1", "port2")
	machines[2].ServeTCP(t, "192.0.2.13:7", "third")
	c, err := machines[0].Dial("tcp", "", "192.0.2.13:7", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := exchange(t, c, "word", 1); got != "third\n" && got != "third\nword" {
		t.Errorf("got %q", got)
	}
}
