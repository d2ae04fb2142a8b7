// SPDX-License-Identifier: Apache-2.0

package security

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// hostileEnv makes the run of TestS3HostileReader a minute long, with 500 connections and the
// bounds of the contract; see make hostile.
const hostileEnv = "LOXILIGHT_HOSTILE"

// fuzzer generates requests from users with read access, for all methods, most of them invalid.
type fuzzer struct{ *rand.Rand }

func (f fuzzer) pick(words ...string) string { return words[f.IntN(len(words))] }

func (f fuzzer) word() string {
	return f.pick("a", "web", "", "*", "::1-8000::", "10.0.0.0/8", "group:a", "group:"+strings.Repeat("g", f.IntN(4000)), "\\u0000", "-1", "1e9",
		strings.Repeat("<", f.IntN(300)), "Service", "AddressGroup", "FirewallRule", "9223372036854775808")
}

// value returns random JSON.
func (f fuzzer) value(depth int) string {
	switch n := f.IntN(9); {
	case n < 3 || depth > 5:
		return `"` + f.word() + `"`
	case n == 3:
		return f.pick("null", "true", "-0", "1.5e300", "18446744073709551616")
	case n < 6:
		return "[" + f.list(func() string { return f.value(depth + 1) }) + "]"
	}
	return "{" + f.list(func() string { return `"` + f.key() + `":` + f.value(depth+1) }) + "}"
}

func (f fuzzer) key() string {
	return f.pick("objects", "kind", "name", "owner", "labels", "spec", "members", "match", "source", "limit", "filter", "continue", f.word())
}

func (f fuzzer) list(each func() string) string {
	words := make([]string, f.IntN(5))
	for i := range words {
		words[i] = each()
	}
	return strings.Join(words, ",")
}

// object returns an object that is valid, or nearly so.
func (f fuzzer) object() string {
	name := fmt.Sprintf(`"name":"n%d"`, f.IntN(50))
	ranges := numbered(`"::1:%x-8000::"`, 64+f.IntN(3000))
	return "{" + name + "," + f.pick(
		`"kind":"AddressGroup","spec":{"members":["group:n`+fmt.Sprint(f.IntN(50))+`","10.0.0.0-10.0.3.9"]}`,
		`"kind":"AddressGroup","spec":{"members":[`+ranges+`]}`,
		`"kind":"FirewallRule","spec":{"action":"deny","match":{"source":[`+ranges+`]}}`,
		`"kind":"NAT","spec":{"type":"snat","to":{"addresses":[`+ranges+`]}}`,
		`"kind":"Service","spec":{"frontends":["192.0.2.9:`+fmt.Sprint(f.IntN(70000))+`/tcp"],"backends":[{"address":"10.0.0.1:80"}]}`,
		`"kind":"Interface","labels":{"`+f.word()+`":"x"},"spec":{"device":"eth0"}`,
		`"kind":"`+f.word()+`","spec":`+f.value(0),
	) + "}"
}

// large returns prepared requests of a megabyte.
var large = sync.OnceValue(func() []string {
	var all []string
	for _, patterns := range []map[string]string{manyPrefixes(), groupPatterns()} {
		for _, objects := range patterns {
			all = append(all, string(dryRun(objects)))
		}
	}
	return append(all, strings.Repeat("[", 200_000), `{"jsonrpc":"2.0","id":1,"method":"get","params":{"`+strings.Repeat("<", 900_000)+`":1}}`)
})

var hostileMethods = []string{
	api.MethodVersion, api.MethodStatus, api.MethodApply, api.MethodReplace, api.MethodDelete, api.MethodGet, api.MethodList, api.MethodChanges,
	api.MethodHistory, api.MethodRollback, api.MethodConfirm, api.MethodReload, api.MethodConnectionsList, api.MethodConnectionsFlush,
	api.MethodCounters, api.MethodNetworkList, api.MethodCNI, api.MethodAddressesList, api.MethodEventsList, api.MethodCapacity, "nothing",
}

// request returns one request with the id.
func (f fuzzer) request(id int) string {
	method := hostileMethods[f.IntN(len(hostileMethods))]
	params := f.value(0)
	switch n := f.IntN(100); {
	case n == 0:
		return strings.Replace(large()[f.IntN(len(large()))], `"id":1`, fmt.Sprintf(`"id":%d`, id), 1)
	case n < 20:
		method = api.MethodApply
		params = `{"dryRun":true,"objects":[` + f.list(f.object) + `]}`
	case n < 25:
		method = api.MethodReplace
		params = `{"dryRun":true,"owner":"cli","kinds":["AddressGroup","Service"],"objects":[` + f.list(f.object) + `]}`
	case n < 30:
		method, params = api.MethodRollback, fmt.Sprintf(`{"dryRun":true,"revision":%d}`, f.IntN(20))
	case n < 60:
		params = f.pick(`{}`, `{"kind":"AddressGroup"}`, `{"kind":"AddressGroup","name":"root"}`, `{"kind":"AddressGroup","name":"change"}`, `{"since":0}`, `{"revision":1}`,
			`{"filter":{}}`, `{"what":"routes"}`, `{"limit":1}`)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`, id, method, params)
}

// changing are the methods without dryRun that never return a result to a reader.
var changing = []string{api.MethodConfirm, api.MethodReload, api.MethodConnectionsFlush, api.MethodCNI}

// wrong returns the error of the reply to a request; empty: no error.
func wrong(request string, id int, r api.Reply, size int) string {
	switch {
	case size > api.MaxReply:
		return fmt.Sprintf("%d bytes", size)
	case (r.Error == nil) == (len(r.Result) == 0):
		return "neither or both of result and error"
	case r.Error != nil && r.Error.Reason() == api.ReasonInternal:
		return "internal: " + r.Error.Message
	case r.Error == nil && string(r.ID) != fmt.Sprint(id):
		return "another id: " + string(r.ID)
	case r.Error == nil && slices.ContainsFunc(changing, func(m string) bool { return strings.Contains(request, `"method":"`+m+`"`) }):
		return "a change by a reader"
	case r.Error == nil && strings.Contains(request, `"method":"apply"`) && !strings.Contains(request, `"dryRun":true`):
		return "a change by a reader"
	}
	return ""
}

// hostile sends requests, over one connection after another, until stop is closed. Some connections
// end within a request.
func (s *controlSite) hostile(f fuzzer, uid int, stop <-chan struct{}, count, bad *atomic.Int64) {
	for {
		p, err := s.dialAs(uid)
		for id := 1; err == nil && id < 50; id++ {
			select {
			case <-stop:
				_ = p.Close()
				return
			default:
			}
			request := f.request(id)
			if f.IntN(30) == 0 { // half a request, then disconnect
				_ = p.send([]byte(request)[:len(request)/2])
				break
			}
			var r api.Reply
			var size int
			if r, size, err = p.call([]byte(request)); err != nil {
				break // disconnected: too many connections
			}
			count.Add(1)
			if why := wrong(request, id, r, size); why != "" && bad.Add(1) < 10 {
				s.t.Errorf("request %.300s: %s", request, why)
			}
		}
		if p != nil {
			_ = p.Close()
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestS3HostileReader: a member of the group loxilight sends random requests over many
// connections, while root commits and reads.
func TestS3HostileReader(t *testing.T) {
	connections, length, bound := 60, 4*time.Second, slowest
	if os.Getenv(hostileEnv) != "" {
		connections, length, bound = 500, time.Minute, 200*time.Millisecond
	}
	s := newControlSite(t)
	s.Start()
	if err := s.change(`{"members":[` + numbered(`"2001:db8:%x::/64"`, 950_000) + `]}`); err != nil { // a large object
		t.Fatal(err)
	}
	quiet := s.beside(func() { <-time.After(time.Second) })
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	large()
	before, _ := s.memory()
	s.forgetPeak()
	var count, bad atomic.Int64
	took := s.beside(func() {
		stop := make(chan struct{})
		var all sync.WaitGroup
		for i := range connections {
			all.Go(func() { s.hostile(fuzzer{rand.New(rand.NewPCG(seed, uint64(i)))}, reader, stop, &count, &bad) })
		}
		<-time.After(length)
		close(stop)
		all.Wait()
	})
	_, peak := s.memory()
	if len(took) == 0 || len(quiet) == 0 || count.Load() == 0 {
		t.Fatalf("%d commits, %d replies", len(took), count.Load())
	}
	slices.Sort(took)
	slices.Sort(quiet)
	t.Logf("%d replies; %d commits of root: median %s, 99 %% %s, slowest %s (without: median %s, slowest %s); memory from %d to %d MiB",
		count.Load(), len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], quiet[len(quiet)/2], quiet[len(quiet)-1],
		before>>20, peak>>20)
	if most := took[len(took)-1]; most > bound {
		t.Errorf("a commit of root took %s, want at most %s", most, bound)
	}
	if peak-before > mostMemory {
		t.Errorf("the daemon used %d MiB more, want at most %d MiB", (peak-before)>>20, mostMemory>>20)
	}
}
