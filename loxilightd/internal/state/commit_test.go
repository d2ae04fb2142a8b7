// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

func actions(r *Result) []string {
	var list []string
	for _, c := range r.Changes {
		list = append(list, c.Key.String()+" "+c.Action.String())
	}
	return list
}

func wantActions(t *testing.T, r *Result, revision uint64, want ...string) {
	t.Helper()
	if got := actions(r); r.Revision != revision || !slices.Equal(got, want) {
		t.Errorf("revision %d, changes %q; want %d, %q", r.Revision, got, revision, want)
	}
}

func TestCommitLifeOfAnObject(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	web := service(t, "web", "192.0.2.7:80 3")
	wantActions(t, commit(t, s, &Transaction{Put: []*Object{web}}), 1, "Service/web created")
	wantActions(t, commit(t, s, &Transaction{Put: []*Object{web}}), 1, "Service/web unchanged")
	labelled := service(t, "web", "192.0.2.7:80 3")
	labelled.Labels = map[string]string{"tier": "front"}
	dns := service(t, "dns", "192.0.2.8:53 2")
	wantActions(t, commit(t, s, &Transaction{Put: []*Object{labelled, dns}}), 2, "Service/web updated", "Service/dns created")
	want := "Service/dns cli map[] \"192.0.2.8:53 2\" @2\nService/web cli map[tier:front] \"192.0.2.7:80 3\" @2\n"
	if got := dump(s.Snapshot()); got != want {
		t.Errorf("store holds\n%swant\n%s", got, want)
	}
	gone := []Key{{KindService, "web"}, {KindService, "mail"}}
	wantActions(t, commit(t, s, &Transaction{Delete: gone}), 3, "Service/web deleted", "Service/mail absent")
	if got := s.Snapshot().Counts()[KindService]; got != 1 || s.Snapshot().Len() != 1 {
		t.Errorf("%d services, %d objects; want 1 of each", got, s.Snapshot().Len())
	}
	if got := s.Snapshot().Cost(); got.Frontends != 1 || got.Backends != 2 {
		t.Errorf("cost %+v, want the cost of dns alone", got)
	}
}

func TestCommitDryRun(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "web", "192.0.2.7:80 3")}})
	before := dump(s.Snapshot())
	put := []*Object{service(t, "web", "192.0.2.7:81 3"), service(t, "dns", "192.0.2.8:53 2")}
	r := commit(t, s, &Transaction{Put: put, DryRun: true})
	wantActions(t, r, 1, "Service/web updated", "Service/dns created")
	if after := dump(s.Snapshot()); after != before {
		t.Errorf("a dry run changed the store to\n%s", after)
	}
	put[1] = service(t, "dns", "192.0.2.7:81 2")
	wantRefusal(t, s, &Transaction{Put: put, DryRun: true}, Conflict, "Service/dns", "spec.frontends[0]", "belongs to Service/web")
}

func TestReplaceIsExact(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{
		object(t, "k8s", "Service/a", "192.0.2.1:80 1"), object(t, "k8s", "Service/b", "192.0.2.2:80 1"),
		object(t, "k8s", "Interface/eth0", "dev eth0"), service(t, "mine", "192.0.2.3:80 1"),
	}})
	r := commit(t, s, &Transaction{
		Put:     []*Object{object(t, "k8s", "Service/b", "192.0.2.2:80 1"), object(t, "k8s", "Service/c", "192.0.2.1:80 1")},
		Replace: &Scope{Owner: "k8s", Kinds: []string{KindService, KindService}},
	})
	wantActions(t, r, 2, "Service/b unchanged", "Service/c created", "Service/a deleted")
	want := "Interface/eth0 k8s map[] \"dev eth0\" @1\nService/b k8s map[] \"192.0.2.2:80 1\" @1\n" +
		"Service/c k8s map[] \"192.0.2.1:80 1\" @2\nService/mine cli map[] \"192.0.2.3:80 1\" @1\n"
	if got := dump(s.Snapshot()); got != want {
		t.Errorf("store holds\n%swant\n%s", got, want)
	}
}

func TestCommitRefusals(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Owner: OwnerFile, Put: []*Object{
		service(t, "web", "192.0.2.7:80 3"), object(t, "file", "Service/base", "192.0.2.9:80 1"),
		object(t, "cli", "Interface/up", "dev eth7"),
	}})
	one, three := uint64(1), uint64(3)
	for _, tt := range []struct {
		name             string
		tr               Transaction
		reason           Reason
		key, field, text string
	}{
		{"revision", Transaction{IfRevision: &three}, Conflict, "", "", "at revision 1, not 3"},
		{
			"owner", Transaction{Put: []*Object{object(t, "k8s", "Service/web", "192.0.2.7:80 3")}},
			Conflict, "Service/web", "owner", "owner cli",
		},
		{
			"delete from files", Transaction{Delete: []Key{{KindService, "base"}}, Owner: "cli", IfRevision: &one},
			Conflict, "Service/base", "owner", "object files",
		},
		{
			"twice", Transaction{Put: []*Object{service(t, "x", "192.0.2.1:80 1"), service(t, "x", "192.0.2.2:80 1")}},
			Invalid, "Service/x", "", "twice",
		},
		{
			"frontend of another", Transaction{Put: []*Object{service(t, "x", "192.0.2.1:80 192.0.2.7:80 1")}},
			Conflict, "Service/x", "spec.frontends[1]", "192.0.2.7:80/tcp belongs to Service/web",
		},
		{
			"frontend within", Transaction{Put: []*Object{service(t, "x", "192.0.2.1:80 1"), service(t, "y", "192.0.2.1:80 1")}},
			Conflict, "Service/y", "spec.frontends[0]", "belongs to Service/x",
		},
		{
			"device", Transaction{Put: []*Object{object(t, "cli", "Interface/again", "dev eth7")}},
			Conflict, "Interface/again", "spec.device", "device eth7 belongs to Interface/up",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantRefusal(t, s, &tt.tr, tt.reason, tt.key, tt.field, tt.text)
		})
	}
}

// TestFrontendChangesHands: a frontend may move between Services within one transaction, in any
// order.
func TestFrontendChangesHands(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 1"), service(t, "b", "192.0.2.2:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.2:80 1"), service(t, "b", "192.0.2.1:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "c", "192.0.2.1:80 1")}, Delete: []Key{{KindService, "b"}}})
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "d", "192.0.2.2:80 1")}}, Conflict, "Service/d", "spec.frontends[0]", "Service/a")
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "d", "192.0.2.1:80 1")}}, Conflict, "Service/d", "spec.frontends[0]", "Service/c")
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.9:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "d", "192.0.2.2:80 1")}})
}

// TestMoreRulesThanCanBe: more rules than the data plane can apply are rejected, even if
// tables.rules has room for them.
func TestMoreRulesThanCanBe(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tables.Rules = 2 * datapath.MaxFirewallRules
	s, _ := open(t, cfg)
	several := func(n int, make func(name string) *Object) *Transaction {
		tr := &Transaction{}
		for i := range n {
			tr.Put = append(tr.Put, make(fmt.Sprintf("r%05d", i)))
		}
		return tr
	}
	rule := func(name string) *Object {
		return &Object{Key: Key{KindFirewallRule, name}, Value: &FirewallRule{datapath.FirewallRule{Hooks: datapath.HookAll}}}
	}
	nat := func(name string) *Object {
		return &Object{Key: Key{KindNAT, name}, Value: &NAT{datapath.NAT{}}}
	}
	wantRefusal(t, s, several(datapath.MaxFirewallRules+1, rule), Capacity, "FirewallRule/r16000", "",
		"a node has at most 16000 FirewallRules: 0 now, 16001 with this change; delete or merge some")
	commit(t, s, several(datapath.MaxFirewallRules, rule))
	wantRefusal(t, s, several(2001, nat), Capacity, "NAT/r02000", "", "a node has at most 2000 NAT rules: 0 now, 2001 with this change")
	commit(t, s, several(2000, nat))
	names := func(name string) *Object {
		peers := []policy.Peer{{}}
		for i := range 1000 {
			peers[0].Names = append(peers[0].Names, fmt.Sprint(strings.TrimSuffix(name, "s"), i)) // rNs has the names of rN
		}
		return &Object{Key: Key{KindPolicy, name}, Value: &Policy{Policy: policy.Policy{Tier: "t", Rules: [2][]policy.Rule{policy.Egress: {{Peers: peers}}}}}}
	}
	commit(t, s, several(1, func(string) *Object { return &Object{Key: Key{KindTier, "t"}, Value: &Tier{}} }))
	wantRefusal(t, s, several(5, names), Capacity, "Policy/r00004", "", "a node has at most 4096 names in Policies: 0 now, 5000 with this change; delete some, or use *.NAME for several names")
	commit(t, s, several(4, names))
	commit(t, s, &Transaction{Put: []*Object{names("r00000s"), names("r00001s")}}) // no further names
	wantRefusal(t, s, &Transaction{Put: []*Object{names("r00004")}}, Capacity, "Policy/r00004", "", "a node has at most 4096 names in Policies: 4000 now, 5000 with this change")
	wantRefusal(t, s, &Transaction{Put: []*Object{{
		Key: Key{KindPodNetwork, "p"}, Value: &PodNetwork{Masquerade: true, Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
	}}}, Capacity, "PodNetwork/p", "", "a node has at most 2000 NAT rules: 2000 now, 2001 with this change")
	commit(t, s, &Transaction{Put: []*Object{rule("s")}, Delete: []Key{{KindFirewallRule, "r00000"}}})
}

func TestCapacity(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Tables.Services, cfg.Tables.Backends = 3, 10
	s, _ := open(t, cfg)
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 192.0.2.2:80 6")}})
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "b", "192.0.2.3:80 4"), service(t, "c", "192.0.2.4:80 0")}},
		Capacity, "Service/c", "spec.frontends", "table services is full: 2 of 3")
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "b", "192.0.2.3:80 5")}},
		Capacity, "Service/b", "spec.backends", "table backends is full: 6 of 10 entries used, 11 with")
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 192.0.2.2:80 11")}},
		Capacity, "Service/a", "spec.backends", "table backends is full")
	commit(t, s, &Transaction{Put: []*Object{service(t, "b", "192.0.2.3:80 4")}})
	// Objects that replace each other in one transaction need room only once.
	commit(t, s, &Transaction{Put: []*Object{service(t, "c", "192.0.2.4:80 4")}, Delete: []Key{{KindService, "b"}}})
}

// TestCapacityLowered: objects that exceed a lowered limit stay and may shrink, but must not grow.
func TestCapacityLowered(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 8"), service(t, "b", "192.0.2.2:80 8")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Tables.Backends = 4
	s, _ = open(t, cfg)
	if s.Snapshot().Len() != 2 {
		t.Fatalf("%d objects after the limit was lowered, want 2", s.Snapshot().Len())
	}
	wantRefusal(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 9")}}, Capacity, "Service/a", "spec.backends", "16 of 4")
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "192.0.2.1:80 7")}})
}

// TestManyGoodOneBad: the 499th of 500 objects is invalid, so none of them is accepted.
func TestManyGoodOneBad(t *testing.T) {
	s, _ := open(t, testConfig(t.TempDir()))
	commit(t, s, &Transaction{Put: []*Object{service(t, "holder", "192.0.2.7:80 1")}})
	var put []*Object
	for i := range 500 {
		put = append(put, service(t, fmt.Sprintf("s%03d", i), fmt.Sprintf("10.96.%d.%d:80 2", i>>8, i&255)))
	}
	put[498] = service(t, "s498", "192.0.2.7:80 2")
	wantRefusal(t, s, &Transaction{Put: put}, Conflict, "Service/s498", "spec.frontends[0]", "Service/holder")
	put[498] = service(t, "s498", "192.0.2.8:80 2")
	commit(t, s, &Transaction{Put: put})
	if got := s.Snapshot().Len(); got != 501 {
		t.Errorf("%d objects, want 501", got)
	}
}
