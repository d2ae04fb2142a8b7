// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

func newClient(t *testing.T, runDir string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Socket: filepath.Join(runDir, ControlSocket)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // nothing is left to send
	return c
}

// serveMini runs a mini daemon and returns its client.
func serveMini(t *testing.T, o Options) (*mini, *Channel, *client.Client) {
	t.Helper()
	m := newMini()
	c := serve(t, o, m.handle)
	m.publish = c.Publish
	return m, c, newClient(t, filepath.Dir(controlPath(c)))
}

func services(count, generation int) []api.Object {
	objects := make([]api.Object, count)
	for i := range objects {
		objects[i] = service(fmt.Sprintf("s%05d", i), generation)
	}
	return objects
}

func TestClientPages(t *testing.T) {
	_, _, c := serveMini(t, Options{})
	if _, err := c.Apply(t.Context(), api.ApplyParams{Objects: services(100, 1)}); err != nil {
		t.Fatal(err)
	}
	i := 0
	for o, err := range c.List(t.Context(), api.ListParams{Kind: api.KindService}) {
		if want := fmt.Sprintf("s%05d", i); err != nil || o.Name != want {
			t.Fatalf("item %d = %q, %v; want %q", i, o.Name, err, want)
		}
		i++
	}
	if i != 100 {
		t.Errorf("%d items, want 100", i)
	}
	for _, err := range c.Connections(t.Context(), api.ConnectionsListParams{}) {
		if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Code != api.CodeMethodNotFound {
			t.Errorf("error = %v, want the daemon's", err)
		}
	}
}

// TestClientSplitsLargeChanges applies five times as much as fits in one request.
func TestClientSplitsLargeChanges(t *testing.T) {
	m, _, c := serveMini(t, Options{})
	result, err := c.Apply(t.Context(), api.ApplyParams{Objects: services(5000, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.commits != 1 || result.Revision != 1 || len(m.objects) != 5000 {
		t.Errorf("%d commits, revision %d, %d objects; want 1, 1, 5000", m.commits, result.Revision, len(m.objects))
	}
}

func TestClientRefusesAnObjectLargerThanARequest(t *testing.T) {
	m, _, c := serveMini(t, Options{})
	big := service("big", 1)
	big.Spec = []byte(`{"x":"` + strings.Repeat("x", api.MaxRequest) + `"}`)
	for name, params := range map[string]api.ApplyParams{
		"alone":                          {Objects: []api.Object{big}},
		"among others":                   {Objects: append(services(2000, 1), big)},
		"in a transaction of the caller": {Objects: []api.Object{big}, Change: api.Change{Transaction: "mine", More: true}},
	} {
		_, err := c.Apply(t.Context(), params)
		if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Reason() != api.ReasonInvalid || refused.Data.Object != "Service/big" ||
			!strings.Contains(err.Error(), "several Services") {
			t.Errorf("%s: %v, want that Service/big is too large", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.objects) != 0 || len(m.staged) != 0 {
		t.Errorf("%d objects were committed, %d transactions staged; want none", len(m.objects), len(m.staged))
	}
}

// TestClientReadsTheLargestReply reads an object that is as large as a reply may be.
func TestClientReadsTheLargestReply(t *testing.T) {
	m, _, c := serveMini(t, Options{})
	big := service("big", 1)
	big.Spec = []byte(`"` + strings.Repeat("x", api.MaxObject) + `"`)
	m.objects[api.ObjectRef{Kind: big.Kind, Name: big.Name}] = big
	if o, err := c.Get(t.Context(), big.Kind, big.Name); err != nil || len(o.Spec) != len(big.Spec) {
		t.Errorf("get: %v", err)
	}
}

// watching runs Watch and passes its steps to the test.
func watching(t *testing.T, c *client.Client, o client.WatchOptions) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	steps := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for w, err := range c.Watch(ctx, o) {
			switch {
			case err != nil:
				continue // Watch retries
			case w.Synced:
				steps <- "synced"
			case w.Object == nil:
				steps <- w.Ref.Name + " gone"
			default:
				port, _, _ := strings.Cut(strings.SplitN(string(w.Object.Spec), ":", 3)[2], "/")
				steps <- w.Ref.Name + " " + port
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return steps
}

func expect(t *testing.T, steps <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-steps:
			if got != w {
				t.Fatalf("step = %q, want %q", got, w)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no step, want %q", w)
		}
	}
}

func apply(t *testing.T, c *client.Client, objects ...api.Object) {
	t.Helper()
	if _, err := c.Apply(t.Context(), api.ApplyParams{Objects: objects}); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	_, _, c := serveMini(t, Options{})
	apply(t, c, service("a", 1), service("b", 1))
	steps := watching(t, c, client.WatchOptions{Kinds: []string{api.KindService}})
	expect(t, steps, "a 1", "b 1", "synced")
	apply(t, c, service("b", 2))
	expect(t, steps, "b 2")
	if _, err := c.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindService, Name: "a"}}}); err != nil {
		t.Fatal(err)
	}
	expect(t, steps, "a gone")
	apply(t, c, service("c", 3), service("d", 4))
	expect(t, steps, "c 3", "d 4")
}

// TestWatchManyChanges changes more objects at once than fit in a subscriber's event queue.
func TestWatchManyChanges(t *testing.T) {
	_, _, c := serveMini(t, Options{})
	apply(t, c, services(1500, 1)...)
	generation := map[string]string{}
	steps := watching(t, c, client.WatchOptions{Kinds: []string{api.KindService}})
	for step := range steps {
		if step == "synced" {
			break
		}
	}
	apply(t, c, services(1500, 2)...)
	deadline := time.After(30 * time.Second)
	for len(generation) < 1500 {
		select {
		case step := <-steps:
			if name, now, ok := strings.Cut(step, " "); ok && now == "2" {
				generation[name] = now
			}
		case <-deadline:
			t.Fatalf("only %d of 1500 changes were reported", len(generation))
		}
	}
}

// TestWatchOverLoss: other events push a change event out of the queue while the caller is busy.
func TestWatchOverLoss(t *testing.T) {
	_, ch, c := serveMini(t, Options{})
	apply(t, c, service("a", 1), service("b", 1))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for w, err := range c.Watch(ctx, client.WatchOptions{Kinds: []string{api.KindService}}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case w.Synced:
			apply(t, c, service("b", 2))
			for i := range uint64(60000) {
				event := changeEvent(i)
				event.Kind = api.KindInterface // a kind that is not watched
				if err := ch.Publish(api.TopicChanges, event); err != nil {
					t.Fatal(err)
				}
			}
		case w.Ref.Name == "b" && strings.Contains(string(w.Object.Spec), ":2/tcp"):
			return
		}
	}
	t.Error("the change was never reported")
}

// TestWatchOverRestart changes objects while the daemon is down.
func TestWatchOverRestart(t *testing.T) {
	dir := runDir(t)
	c := newClient(t, dir)
	var steps <-chan string
	run := func(name string, objects []api.Object, then func()) {
		t.Run(name, func(t *testing.T) { // the daemon ends with the subtest
			m := newMini()
			if _, err := m.apply(api.ApplyParams{Objects: objects}); err != nil {
				t.Fatal(err)
			}
			serve(t, Options{RunDir: dir}, m.handle)
			then()
		})
	}
	run("before", []api.Object{service("a", 1), service("b", 1)}, func() {
		steps = watching(t, c, client.WatchOptions{Kinds: []string{api.KindService}})
		expect(t, steps, "a 1", "b 1", "synced")
	})
	run("after", []api.Object{service("b", 2), service("c", 2)}, func() {
		expect(t, steps, "b 2", "c 2", "a gone", "synced")
	})
}

// skip uses up a number of a topic without sending an event.
func skip(c *Channel, topic string) {
	c.pub.mu.Lock()
	defer c.pub.mu.Unlock()
	c.pub.took(topic, c.pub.seq[topic]+1)
}

// TestSkippedEventsAreSeen: subscribers detect that the daemon skipped events that it could not
// send.
func TestSkippedEventsAreSeen(t *testing.T) {
	_, ch, c := serveMini(t, Options{})
	s, err := c.Subscribe(t.Context(), api.TopicChanges)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	skip(ch, api.TopicChanges)
	skip(ch, api.TopicStatus)
	if e, err := s.Next(ctx); err != nil || e.Lost != 1 || e.Data != nil || e.Topic != api.TopicChanges {
		t.Errorf("event = %+v, %v; want one lost of changes", e, err)
	}
	skip(ch, api.TopicChanges)
	if err := ch.Publish(api.TopicChanges, changeEvent(5)); err != nil {
		t.Fatal(err)
	}
	if e, err := s.Next(ctx); err != nil || e.Lost != 1 || e.Seq != 3 {
		t.Errorf("event = %+v, %v; want number 3 after one lost", e, err)
	}
}

// TestLostEventsAreSeen: a slow client knows how many events it has
// lost, including the last ones.
func TestLostEventsAreSeen(t *testing.T) {
	_, ch, c := serveMini(t, Options{})
	s, err := c.Subscribe(t.Context(), api.TopicChanges)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const count = 50000
	for i := range uint64(count) {
		if err := ch.Publish(api.TopicChanges, changeEvent(i)); err != nil {
			t.Fatal(err)
		}
	}
	came, lost := uint64(0), uint64(0)
	for came+lost < count {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		e, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("after %d events and %d lost: %v", came, lost, err)
		}
		lost += e.Lost
		if e.Data != nil {
			came++
		}
		if e.Seq != came+lost {
			t.Fatalf("event %d after %d and %d lost", e.Seq, came, lost)
		}
	}
	t.Logf("%d came, %d lost", came, lost)
	if lost == 0 {
		t.Error("none was lost, so the test shows nothing: publish more")
	}
}
