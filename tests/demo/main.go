// SPDX-License-Identifier: Apache-2.0

// Command demo shows loxilight at work on a network that it creates itself: the real daemon, real
// HTTP, nothing left behind. Its exit code is 0 only if every step succeeded.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

//go:embed demo.yaml
var objects string

const network = `
                                              ┌─ web1 ── 10.0.1.2  web server 1
  client ── uplink [ node with loxilightd ] ──┼─ web2 ── 10.0.2.2  web server 2
  192.0.2.17                                  └─ web3 ── 10.0.3.2  web server 3

  Six namespaces, as machines: nothing of this machine's own network is touched.
  The service's addresses, 198.51.100.10 and 2001:db8:100::10, are on no machine.
`

func main() {
	bin := flag.String("bin", "bin", "directory of loxilightd and llcli")
	flag.Parse()
	// SIGPIPE, too: if the reader of the output ends, the network must still be removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	s := &stage{ctx: ctx}
	dir, err := filepath.Abs(*bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	d := &demo{stage: s, programs: testdaemon.In(dir)}
	code := s.play(d.run)
	switch {
	case code == 130:
		fmt.Println("\nInterrupted. Everything was removed.")
	case code == 0:
		fmt.Println("\nAll steps succeeded. Everything was removed; nothing is left on this machine.")
	}
	os.Exit(code)
}

// demo is the network and the daemon on it.
type demo struct {
	*stage
	programs     testdaemon.Programs
	client, node *testnet.NS
	webs         [3]*testnet.NS
	servers      [3]*testnet.Server
	daemon       *testdaemon.Daemon
	chapters     int
}

// frontends are the service's addresses.
var frontends = []string{"198.51.100.10", "[2001:db8:100::10]"}

func (d *demo) run() {
	d.chapter("A network: a client, the node, three web servers")
	d.build()
	fmt.Print(network)

	d.chapter("The daemon starts and is configured")
	d.daemon = testdaemon.New(d, d.node, d.programs,
		"tables: {connections: 65536, services: 1024, backends: 1024, affinity: 1024, ranges: 1024}")
	d.daemon.Start()
	fmt.Printf("\nloxilightd runs as process %d. tests/demo/demo.yaml says:\n\n%s\n", d.daemon.Process().PID(), indent(objects))
	d.llcli("apply", "-f", d.daemon.File(objects), "--wait", "10s")

	d.chapter("HTTP through the service, over IPv4 and IPv6")
	for _, address := range frontends {
		d.spread(address, 300)
	}

	d.chapter("The daemon's view of the traffic")
	d.llcli("connections", "--service", "web", "--limit", "6")
	d.llcli("counters", "service", "web")

	d.chapter("A web server is taken out while requests come in")
	d.takeOut()

	d.chapter("The daemon is killed and started again while requests come in")
	d.restart()

	d.chapter("Final state")
	d.llcli("status")
	d.llcli("get", "services", "-o", "wide")
}

// build creates the machines and starts the web servers.
func (d *demo) build() {
	d.client, d.node = testnet.New(d, "client"), testnet.New(d, "node")
	testnet.Veth(d,
		testnet.Port{NS: d.node, Name: "uplink", Addrs: []string{"192.0.2.1/24", "2001:db8:0:2::1/64"}},
		testnet.Port{NS: d.client, Name: "eth0", Addrs: []string{"192.0.2.17/24", "2001:db8:0:2::17/64"}})
	d.client.Route(d, "default", "192.0.2.1")
	d.client.Route(d, "default", "2001:db8:0:2::1")
	d.node.Forward(d)
	for i := range d.webs {
		name := fmt.Sprintf("web%d", i+1)
		web := testnet.New(d, name)
		net4, net6 := fmt.Sprintf("10.0.%d.", i+1), fmt.Sprintf("2001:db8:%d::", i+1)
		testnet.Veth(d, testnet.Port{NS: d.node, Name: name, Addrs: []string{net4 + "1/24", net6 + "1/64"}},
			testnet.Port{NS: web, Name: "eth0", Addrs: []string{net4 + "2/24", net6 + "2/64"}})
		web.Route(d, "default", net4+"1")
		web.Route(d, "default", net6+"1")
		d.webs[i] = web
		d.servers[i] = web.ServeHTTP(d, "[::]:8080", name)
	}
}

// spread sends requests one after the other and shows which servers answered them.
func (d *demo) spread(address string, requests int) {
	got := make(map[string]int)
	client := d.client.HTTPClient(5 * time.Second)
	for range requests {
		d.check()
		name, err := get(client, address)
		if err != nil {
			d.Fatalf("request to %s: %v", address, err)
		}
		got[name]++
	}
	fmt.Printf("\n%d requests to http://%s/, each on a connection of its own:\n\n", requests, address)
	for i := range d.servers {
		name := fmt.Sprintf("web%d", i+1)
		fmt.Printf("  %s  %4d  %s\n", name, got[name], strings.Repeat("█", got[name]*60/requests))
		if got[name] < requests/10 {
			d.Errorf("%s answered %d of %d requests", name, got[name], requests)
		}
	}
}

// takeOut drains a web server and stops it, under load.
func (d *demo) takeOut() {
	const out = 1
	l := d.startLoad()
	d.pause(time.Second)
	l.show("all three serve")
	d.llcli("service", "drain", "web", "10.0.2.2:8080", "[2001:db8:2::2]:8080", "--wait", "5s")
	l.take()
	// Pending requests end; then no client uses the server.
	seen := d.servers[out].Seen.Load()
	for quiet := 0; quiet < 5; quiet++ {
		d.pause(100 * time.Millisecond)
		if now := d.servers[out].Seen.Load(); now != seen {
			seen, quiet = now, 0
		}
	}
	d.servers[out].Close()
	fmt.Println("  web2 is drained, gets no more requests, and was stopped.")
	d.pause(time.Second)
	l.show("two serve")
	d.llcli("counters", "service", "web")
	d.servers[out] = d.webs[out].ServeHTTP(d, "[::]:8080", "web2")
	d.llcli("service", "drain", "web", "10.0.2.2:8080", "[2001:db8:2::2]:8080", "--undo", "--wait", "5s")
	l.take()
	d.pause(time.Second)
	l.show("all three serve again")
	d.expectNoneLost(l)
}

// restart kills the daemon and starts it, under load.
func (d *demo) restart() {
	before := d.daemon.Counters(api.KindService, "web").Connections
	l := d.startLoad()
	d.pause(500 * time.Millisecond)
	d.daemon.Kill()
	fmt.Printf("\n  kill -9 %d\n", d.daemon.Process().PID())
	l.take()
	d.pause(time.Second)
	l.show("without a daemon")
	d.daemon.Start()
	fmt.Printf("\n  loxilightd runs again, as process %d\n", d.daemon.Process().PID())
	l.take()
	d.pause(time.Second)
	l.show("with it")
	d.expectNoneLost(l)
	if after := d.daemon.Counters(api.KindService, "web").Connections; after < before+l.total() {
		d.Errorf("the service counted %d connections before, %d now, after %d requests", before, after, l.total())
	}
}

func (d *demo) expectNoneLost(l *load) {
	l.end()
	fmt.Printf("\n  %d requests, %d lost\n", l.total(), len(l.failures))
	for _, failure := range l.failures {
		d.Errorf("a request was lost: %v", failure)
	}
}

// llcli shows a command and its output.
func (d *demo) llcli(args ...string) {
	out := d.daemon.LLCLI(args...)
	shown := strings.Join(args, " ")
	if i := strings.Index(shown, "/"); strings.HasPrefix(shown, "apply") && i > 0 {
		shown = "apply -f tests/demo/demo.yaml --wait 10s"
	}
	fmt.Printf("\n  # llcli %s\n%s", shown, indent(out))
}

func (d *demo) chapter(title string) {
	d.check()
	d.chapters++
	line := fmt.Sprintf("%d. %s", d.chapters, title)
	fmt.Printf("\n%s\n%s\n", line, strings.Repeat("─", len([]rune(line))))
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ") + "\n"
}
