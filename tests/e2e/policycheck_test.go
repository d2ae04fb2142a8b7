// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

var podNames = []string{"a", "b", "x"}

// randomPolicies returns two tiers with policies for random pods, peers and ports.
func (s *policySite) randomPolicies(random *rand.Rand) string {
	one := func(words ...string) string { return words[random.IntN(len(words))] }
	pod := func() string { return one(podNames...) }
	peer := func() string {
		p := s.pods[pod()]
		return one(
			"{entities: {matchLabels: {app: "+pod()+"}}}",
			"{entities: {matchExpressions: [{key: app, operator: NotIn, values: ["+pod()+"]}]}}",
			fmt.Sprintf("{prefixes: [10.72.0.0/24, fd72::/64], except: [%s, %s]}", p.addr, p.addr6),
			fmt.Sprintf("{prefixes: [%s]}", p.addr),
			fmt.Sprintf("{prefixes: [%s]}", p.addr6),
		)
	}
	rules := func(list string) string {
		var all []string
		for range random.IntN(3) {
			rule := "{action: " + one("allow", "allow", "deny", "reject", "pass")
			if random.IntN(4) > 0 {
				rule += ", " + list + ": [" + peer() + "]"
			}
			if random.IntN(2) > 0 {
				rule += ", ports: [{protocol: " + one("tcp", "udp") + ", port: " + one("4660", "4661", "4600, end: 4660") + "}]"
			}
			all = append(all, rule+"}")
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	docs := []string{"kind: Tier\nname: admin\nspec: {order: 100}", "kind: Tier\nname: main\nspec: {order: 200, always: [self, node]}"}
	for i := range 4 {
		docs = append(docs, fmt.Sprintf("kind: Policy\nname: p%d\nspec: {tier: %s, priority: %d, stage: %s, isolate: %s, appliedTo: [%s], ingress: %s, egress: %s}",
			i, one("admin", "main"), random.IntN(3), one("enforced", "enforced", "enforced", "staged"), one("[]", "[ingress]", "[egress]", "[ingress, egress]"),
			one("{}", "{entities: {matchLabels: {app: "+pod()+"}}}"), rules("from"), rules("to")))
	}
	return strings.Join(docs, "\n---\n")
}

// TestPolicyCheck: under random policies, llcli policy check says what packets do, also of policies that
// are not applied yet. LOXILIGHT_CHECKS is the number of checks, each in both address families.
func TestPolicyCheck(t *testing.T) {
	checks := 48
	if v := os.Getenv("LOXILIGHT_CHECKS"); v != "" {
		var err error
		if checks, err = strconv.Atoi(v); err != nil {
			t.Fatalf("LOXILIGHT_CHECKS=%s: %v", v, err)
		}
	}
	s := newPolicies(t)
	for _, name := range podNames {
		p := s.pods[name]
		for _, addr := range []string{p.addr.String(), p.addr6.String()} {
			for _, port := range []string{"4660", "4661"} {
				if at := net.JoinHostPort(addr, port); try(p.ns, "tcp", at, silence) != let {
					p.ns.ServeTCP(t, at, name)
				}
				if at := net.JoinHostPort(addr, port); try(p.ns, "udp", at, silence) != let {
					p.ns.ServeUDP(t, at, name)
				}
			}
		}
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	verdicts := map[string]int{}
	for n := 0; n < checks && !t.Failed(); n++ {
		if n%8 != 0 {
			s.checkOne(random, nil, verdicts)
			continue
		}
		file := s.File(s.randomPolicies(random))
		before := s.askOne(random, []string{"-f", file})
		s.change("apply", "-f", file)
		s.checkOne(random, before, verdicts)
	}
	if verdicts["allow"] == 0 || verdicts["deny"]+verdicts["reject"] == 0 {
		t.Errorf("verdicts %v: some are missing", verdicts)
	}
}

// question is traffic, and what llcli policy check says of it.
type question struct {
	from, to, network, port string
	answer                  api.PoliciesCheckResult
}

func (q *question) String() string {
	return fmt.Sprintf("%s to %s, %s/%s", q.from, q.to, q.network, q.port)
}

// askOne asks about random traffic.
func (s *policySite) askOne(random *rand.Rand, more []string) *question {
	s.t.Helper()
	from := random.IntN(len(podNames))
	to := (from + 1 + random.IntN(len(podNames)-1)) % len(podNames)
	q := &question{from: podNames[from], to: podNames[to], network: []string{"tcp", "udp"}[random.IntN(2)], port: []string{"4660", "4661"}[random.IntN(2)]}
	ends := []string{"shop/" + q.from, "shop/" + q.to}
	for i, name := range []string{q.from, q.to} { // also by address: then of this family alone
		if random.IntN(6) == 0 {
			ends[i] = s.pods[name].addr6.String()
		}
	}
	out := s.LLCLI(append([]string{"policy", "check", ends[0], ends[1], q.network + "/" + q.port, "-o", "json"}, more...)...)
	if err := json.Unmarshal([]byte(out), &q.answer); err != nil || len(q.answer.Paths) == 0 || q.answer.Pending != "" {
		s.t.Fatalf("%s: %v\n%s", q, err, out)
	}
	return q
}

// checkOne sends the traffic of a question, of a random one if it is nil.
func (s *policySite) checkOne(random *rand.Rand, q *question, verdicts map[string]int) {
	s.t.Helper()
	if q == nil {
		q = s.askOne(random, nil)
	}
	for _, path := range q.answer.Paths {
		verdicts[path.Verdict]++
		wait := silence
		if path.Verdict == "allow" {
			wait = patience
		}
		got := try(s.pods[q.from].ns, q.network, net.JoinHostPort(path.Destination, q.port), wait)
		if (got == let) != (path.Verdict == "allow") || (got == refused) != (path.Verdict == "reject") {
			text, _ := json.MarshalIndent(path, "", " ")
			s.t.Errorf("%s: %s, and llcli policy check says %s\n%s\n%s", q, got, path.Verdict, text, s.LLCLI("get", "policies", "-o", "yaml"))
		}
	}
}

// TestPolicyCheckText: what llcli policy check and llcli policy for show.
func TestPolicyCheckText(t *testing.T) {
	s := newPolicies(t)
	show := func(want string, args ...string) {
		t.Helper()
		out, _, err := s.TryLLCLI(args...)
		text := strings.Join(strings.Fields(out), " ")
		if err != nil {
			text += err.Error()
		}
		for _, part := range strings.Split(want, "\n") {
			if part = strings.Join(strings.Fields(part), " "); !strings.Contains(text, part) {
				t.Errorf("llcli %s lacks %q:\n%s", strings.Join(args, " "), part, text)
			}
		}
		t.Logf("llcli %s\n%s", strings.Join(args, " "), out)
	}
	show("allow 10.72.0.2 → 10.72.0.3\nno tier decides", "policy", "check", "shop/a", "shop/b", "tcp/4660")
	file := s.File(policyObjects)
	show("deny 10.72.0.4 → 10.72.0.3", "policy", "check", "shop/x", "shop/b", "tcp/4660", "-f", file)
	show("no tier decides", "policy", "check", "shop/x", "shop/b", "tcp/4660")
	s.change("apply", "-f", file)
	show("allow 10.72.0.2 → 10.72.0.3\nallow fd72::2 → fd72::3\ningress shop/b main allow db rule 1 app=a port tcp/4660 deny", "policy", "check", "shop/a", "shop/b", "4660/tcp")
	show("deny 10.72.0.4 → 10.72.0.3\ningress shop/b main isolated db", "policy", "check", "10.72.0.4", "shop/b", "udp/53")
	show("allow node → 10.72.0.3\ningress shop/b main exempt", "policy", "check", "node", "10.72.0.3", "icmp")
	show("deny 203.0.113.7 → 10.72.0.3", "policy", "check", "203.0.113.7", "shop/b", "tcp/22")
	show("No Policy applies", "policy", "check", "203.0.113.7", "198.51.100.1", "tcp/22")
	show("app=b\ningress main db 1 yes enforced", "policy", "for", "shop/b")
	show("No Policy applies", "policy", "for", "shop/a")
	for _, bad := range [][]string{
		{"there is no Endpoint, pod or Entity", "check", "shop/none", "shop/b", "tcp/1"},
		{"is not from 1 to 65535", "check", "shop/a", "shop/b", "tcp/65536"},
		{"is missing", "check", "shop/a", "shop/b", "tcp"},
		{"is not tcp, udp, sctp", "check", "shop/a", "shop/b", "dccp/7"},
		{"is only for tcp, udp and sctp", "check", "shop/a", "shop/b", "icmp/7"},
		{"no address family in common", "check", "10.72.0.2", "fd72::3", "tcp/7"},
		{"2 arguments", "check", "shop/a", "shop/b"},
		{"there is no Endpoint or pod", "for", "shop/none"},
		{"unknown field", "check", "shop/a", "shop/b", "tcp/7", "-f", s.File("kind: Tier\nname: t\nspec: {sort: 1}")},
	} {
		show(bad[0], append([]string{"policy"}, bad[1:]...)...)
	}
	testnet.Eventually(t, patience, "health is ok", func() bool { _, code, _ := s.TryLLCLI("health"); return code == 0 })
}
