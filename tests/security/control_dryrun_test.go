// SPDX-License-Identifier: Apache-2.0

package security

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
)

// mostMemory is how much additional memory users with read access can make the daemon use.
const mostMemory = 64 << 20

// slowest is how long a commit by root may take on a busy machine: before the fix it was 42 s.
const slowest = 3 * time.Second

// repeated returns as many comma-separated copies of a word as fit in a request.
func repeated(word string) string {
	n := (api.MaxRequest - 4096) / (len(word) + 1)
	return strings.TrimSuffix(strings.Repeat(word+",", n), ",")
}

// numbered is like repeated, with a number in place of %d or %x, and for the given number of bytes.
func numbered(word string, bytes int) string {
	var b strings.Builder
	for i := 0; b.Len() < bytes-64; i++ {
		fmt.Fprintf(&b, word+",", i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// manyPrefixes are objects of one megabyte that would expand to hundreds of megabytes.
func manyPrefixes() map[string]string {
	// The ranges differ, and each consists of 127 prefixes.
	ranges := numbered(`"::1:%x-8000::"`, api.MaxRequest-4096)
	return map[string]string{
		"match":   `{"kind":"FirewallRule","name":"a","spec":{"action":"deny","match":{"source":[` + ranges + `]}}}`,
		"group":   `{"kind":"AddressGroup","name":"a","spec":{"members":[` + ranges + `]}}`,
		"pool":    `{"kind":"NAT","name":"a","spec":{"type":"snat","match":{"out":"eth0"},"to":{"addresses":[` + ranges + `]}}}`,
		"objects": repeated(`{}`),
		"members": `{"kind":"AddressGroup","name":"a","spec":{"members":[` + repeated(`"::"`) + `]}}`,
		"backends": `{"kind":"Service","name":"a","spec":{"frontends":["192.0.2.1:80/tcp"],"backends":[` +
			repeated(`{}`) + `]}}`,
		"sources": `{"kind":"Service","name":"a","spec":{"frontends":["192.0.2.1:80/tcp"],"sourceRanges":[` +
			numbered(`"2001:db8:%x::/64"`, api.MaxRequest-4096) + `]}}`,
	}
}

// TestS3MemoryOfDryRuns: a member of the group sends seven requests of one megabyte at once, each
// of which would expand to hundreds of megabytes. A long list of prefixes is accepted.
func TestS3MemoryOfDryRuns(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	for name, objects := range manyPrefixes() {
		t.Run(name, func(t *testing.T) {
			request := dryRun(objects)
			before, _ := s.memory()
			s.forgetPeak()
			var all sync.WaitGroup
			for range 7 {
				all.Go(func() {
					p, err := s.dialAs(reader)
					if err != nil {
						t.Errorf("connect: %v", err)
						return
					}
					defer p.Close() // the reply is read
					if _, _, err := p.call(request); err != nil {
						t.Errorf("no reply: %v", err)
					}
				})
			}
			all.Wait()
			_, peak := s.memory()
			t.Logf("from %d MiB to %d MiB", before>>20, peak>>20)
			if peak-before > mostMemory {
				t.Errorf("a reader made the daemon use %d MiB more, want at most %d MiB", (peak-before)>>20, mostMemory>>20)
			}
		})
	}
	p, err := s.dialAs(reader)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close() // the reply is read
	long := `{"kind":"AddressGroup","name":"a","spec":{"members":[` + numbered(`"2001:db8:%x::/64"`, 950_000) + `]}}`
	if r, _, err := p.call(dryRun(long)); err != nil || r.Error != nil {
		t.Errorf("a reader's dry run of a long list of prefixes: %v, %v", err, r.Error)
	}
}

// TestS3UnreadReplies: a member of the group requests the largest object over all connections that
// it may have, and reads none of the replies, while another member reads them.
func TestS3UnreadReplies(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	if err := s.change(`{"members":[` + numbered(`"2001:db8:%x::/64"`, 950_000) + `]}`); err != nil {
		t.Fatal(err)
	}
	get := []byte(`{"jsonrpc":"2.0","id":1,"method":"get","params":{"kind":"AddressGroup","name":"change"}}`)
	before, _ := s.memory()
	s.forgetPeak()
	const connections, length = 128, 3 * time.Second
	end := time.Now().Add(length)
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for time.Now().Before(end) {
				p, err := s.dialAs(reader)
				for i := 0; err == nil && i < 8; i++ {
					err = p.send(get)
				}
				if p != nil {
					<-time.After(time.Second)
					_ = p.Close()
				}
			}
		})
	}
	count := 0
	for time.Now().Before(end) {
		p, err := s.dialAs(anotherReader)
		if err != nil {
			t.Fatal(err)
		}
		if _, size, err := p.call(get); err != nil || size < 900_000 {
			t.Errorf("a reply of %d bytes, %v; want the whole object", size, err)
		}
		_ = p.Close()
		count++
	}
	all.Wait()
	_, peak := s.memory()
	t.Logf("from %d MiB to %d MiB; another reader got %d replies", before>>20, peak>>20, count)
	if peak-before > mostMemory {
		t.Errorf("a reader made the daemon use %d MiB more, want at most %d MiB", (peak-before)>>20, mostMemory>>20)
	}
}

// groupPatterns are changes of one megabyte that take long to evaluate.
func groupPatterns() map[string]string {
	user := `{"kind":"AddressGroup","name":"u%d","spec":{"members":["group:a"]}}`
	leaf := `{"kind":"AddressGroup","name":"l%d","spec":{"members":[]}}`
	leaves := numbered(leaf, api.MaxRequest/2)
	list := numbered(`"group:l%d"`, strings.Count(leaves, "{")/2*12)
	return map[string]string{
		"the same reference": `{"kind":"AddressGroup","name":"a","spec":{"members":[` +
			strings.TrimSuffix(strings.Repeat(`"group:b",`, 55_000), ",") + `]}},{"kind":"AddressGroup","name":"b","spec":{"members":[]}},` +
			numbered(user, api.MaxRequest/3),
		"other references": leaves + `,{"kind":"AddressGroup","name":"a","spec":{"members":[` + list[:strings.LastIndex(list, ",")] + `]}},` +
			numbered(user, api.MaxRequest/5),
	}
}

// TestS3CommitsBesideDryRuns: a member of the group requests dry runs of groups that refer to each
// other, seven at a time, while root commits.
func TestS3CommitsBesideDryRuns(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	for name, objects := range groupPatterns() {
		t.Run(name, func(t *testing.T) {
			request := dryRun(objects)
			if len(request) > api.MaxRequest {
				t.Fatalf("the request has %d bytes", len(request))
			}
			took := s.beside(func() {
				var all sync.WaitGroup
				for range 7 {
					all.Go(func() {
						p, err := s.dialAs(reader)
						if err != nil {
							t.Errorf("connect: %v", err)
							return
						}
						defer p.Close() // the reply is read
						for range 2 {
							if r, _, err := p.call(request); err != nil {
								t.Errorf("reply %s, %v", r.Result, err)
							}
						}
					})
				}
				all.Wait()
			})
			if len(took) == 0 {
				t.Fatal("root made no commit")
			}
			t.Logf("%d commits of root, the slowest took %s", len(took), slices.Max(took))
			if most := slices.Max(took); most > slowest {
				t.Errorf("dry runs of a reader made root's commit take %s, want at most %s", most, slowest)
			}
		})
	}
}

// TestS18LongReplies sends requests whose errors would repeat them: replies have the length limit
// of the contract, and the log does not mention them.
func TestS18LongReplies(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	long := strings.Repeat("x", api.MaxRequest-4096)
	escaped := strings.Repeat(`<`, api.MaxRequest-4096)
	for name, request := range map[string]string{
		"label":     string(dryRun(`{"kind":"Service","name":"a","labels":{"` + long + `":1}}`)),
		"field":     string(dryRun(`{"kind":"Service","name":"a","` + escaped + `":1}`)),
		"name":      string(dryRun(`{"kind":"Service","name":"` + long + `","spec":{}}`)),
		"kind":      string(dryRun(`{"kind":"` + long + `","name":"a","spec":{}}`)),
		"method":    `{"jsonrpc":"2.0","id":1,"method":"` + escaped + `"}`,
		"parameter": `{"jsonrpc":"2.0","id":1,"method":"get","params":{"` + long + `":1}}`,
		"owner": `{"jsonrpc":"2.0","id":1,"method":"replace","params":{"dryRun":true,"owner":"` + long +
			`","kinds":["Service"],"objects":[{"kind":"Service","name":"a","owner":"b","spec":{"frontends":["192.0.2.1:80/tcp"]}}]}}`,
		"colon":    `{"` + long + `"}`,
		"continue": `{"jsonrpc":"2.0","id":1,"method":"history","params":{"continue":"` + escaped + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := s.dialAs(reader)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close() // the reply is read
			r, size, err := p.call([]byte(request))
			if err != nil || r.Error == nil || size > api.MaxReply {
				t.Errorf("a reply of %d bytes, error %.200v, %v; want an error of at most %d bytes", size, r.Error, err, api.MaxReply)
			}
		})
	}
	for line := range strings.Lines(s.Process().Output()) {
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("the log: %.300s", line)
		}
	}
}
