// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/internal/testreport"
)

// policyScale is a state of policies; both ends of the measured connections are Endpoints, and with
// policies, each has at least one.
type policyScale struct {
	name                  string
	pods, local, policies int
	onServer              int // policies of the server
}

var policyScales = []policyScale{
	{name: "no policies"},
	{name: "1 policy for each end", policies: 2, onServer: 1},
	{name: "1,000 policies of one Endpoint", policies: 1001, onServer: 1000},
	{name: "10 policies, 100 pods", pods: 100, local: 100, policies: 10, onServer: 1},
	{name: "10,000 policies, 10,000 pods, 250 of them local", pods: 10_000, local: 250, policies: 10_000, onServer: 1},
}

// state returns policies for p's Endpoints, by which a may reach b, and for others.
func (s *policyScale) state(p *rigPolicies, port uint16) *policy.State {
	label := func(key string, n int) policy.Selector {
		return policy.Selector{Set: "pods", Labels: policy.Requirements{{Key: key, Operator: policy.In, Values: []string{fmt.Sprint(n)}}}}
	}
	next := p.s
	next.Entities, next.Policies = map[string]*policy.Entity{}, map[string]*policy.Policy{}
	for name, e := range p.s.Entities {
		next.Entities[name] = e
	}
	for i := range s.pods {
		e := &policy.Entity{
			Name: fmt.Sprint("pod", i), Set: "pods", Labels: map[string]string{"service": fmt.Sprint(i % 1000), "team": fmt.Sprint(i % 100)},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})},
		}
		if i < s.local {
			e.Endpoint = e.Name
		}
		next.Entities[e.Name] = e
	}
	add := func(applied policy.Selector, d policy.Direction, peer policy.Selector, port uint16) {
		one := &policy.Policy{Name: fmt.Sprint("policy", len(next.Policies)), Tier: "tier", AppliedTo: []policy.Selector{applied}}
		one.Isolates[d] = true
		one.Rules[d] = []policy.Rule{{ID: "1", Peers: []policy.Peer{{Entities: &peer}}, Ports: []policy.Port{{Protocol: policy.UDP, First: port, Last: port}}}}
		next.Policies[one.Name] = one
	}
	if s.policies > 0 {
		add(pod("a"), policy.Egress, pod("b"), port)
	}
	for i := 1; i < s.onServer; i++ {
		add(pod("b"), policy.Ingress, label("team", i), uint16(i))
	}
	if s.onServer > 0 {
		add(pod("b"), policy.Ingress, pod("a"), port)
	}
	for i := 0; len(next.Policies) < s.policies; i++ {
		add(label("service", i), policy.Ingress, label("team", i%100), uint16(1000+i%50))
	}
	return &next
}

// BenchmarkPolicies measures, with BPF_PROG_RUN, the first packet of connections through a Service under
// policies of several scales, and such a packet that policies deny. Each is measured in turn, several
// times. With LOXILIGHT_REPORT, the results are written into that document.
func BenchmarkPolicies(b *testing.B) {
	machine, err := testreport.Machine()
	if err != nil {
		b.Fatal(err)
	}
	const rounds, packets = 5, 800 // fewer connections than ports that [life.rigFor] has not used
	l := lives[0]
	f := families[0]
	var rows []string
	for b.Loop() {
		r := l.rigFor(b, f)
		p := r.policies(f.client.Addr(), f.far.Addr())
		allowed, denied := make([][]time.Duration, len(policyScales)), make([][]time.Duration, len(policyScales))
		next := 0
		for range rounds {
			for n := range policyScales {
				if policyScales[n].policies == 0 {
					r.ok(p.Delete(context.Background(), datapath.NodeSet))
				} else {
					r.ok(p.Update(context.Background(), datapath.NodeSet, policyScales[n].state(p, f.far.Port())))
				}
				r.ns.Do(b, func() error {
					for i := range packets {
						allowed[n] = append(allowed[n], l.time(r, f, next, &l.packets[0]))
						if next++; policyScales[n].policies > 0 && i%4 == 0 {
							denied[n] = append(denied[n], timeDenied(r, f, next))
						}
					}
					return nil
				})
			}
		}
		rows = nil
		of := medians(allowed)
		for n := range policyScales {
			row := fmt.Sprintf("| %s | %d | %.2f |", policyScales[n].name, of[n].Nanoseconds(), float64(of[n])/float64(of[0]))
			if policyScales[n].policies > 0 {
				row += fmt.Sprintf(" %d |", medians(denied[n : n+1])[0].Nanoseconds())
			} else {
				row += " – |"
			}
			rows = append(rows, row)
		}
		r.ok(p.Delete(context.Background(), datapath.NodeSet))
	}
	part := fmt.Sprintf(`## The first packet under network policies
Written by %[1]smake bench-stages%[1]s on %s: %s; loxilight %s. Do not edit; run it again.

ns of our programs alone for the first UDP packet through a Service, IPv4, client and server on this
node: medians of %d connections, measured in turn. The last column is a packet that the server's
policies deny.

| policies | first packet | to none | denied |
|---|---|---|---|
%s
`, "`", time.Now().Format(time.DateOnly), machine, os.Getenv("LOXILIGHT_VERSION"), rounds*packets, strings.Join(rows, "\n"))
	b.Log("\n" + part)
	if path := os.Getenv("LOXILIGHT_REPORT"); path != "" {
		if err := testreport.Write(path, testreport.Policies, part); err != nil {
			b.Fatal(err)
		}
	}
}

// timeDenied returns how long the programs take for a packet of the client to a port of the server that
// policies deny.
func timeDenied(r *rig, f family, i int) time.Duration {
	frame := packet(r.in.arrives(), lives[0].proto, netip.AddrPortFrom(f.client.Addr(), uint16(1024+i)), netip.AddrPortFrom(f.far.Addr(), f.far.Port()+1), stageData, 61)
	d, action, err := timeOne(r.ingress, frame, r.in)
	if err != nil || action != actShot {
		r.t.Fatalf("denied packet: action %d, %v, counters %v", int32(action), err, r.counters())
	}
	return d
}
