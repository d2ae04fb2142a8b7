// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"bufio"
	"context"
	"encoding/json"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

func changeEvent(revision uint64) *api.ChangeEvent {
	return &api.ChangeEvent{Revision: revision, Kind: "Service", Name: "web", Action: "updated"}
}

// subscribe connects to the events socket and reads the greeting.
func subscribe(t *testing.T, c *Channel) (*raw, api.HelloEvent) {
	t.Helper()
	r := dialRaw(t, eventsPath(c)).shake(protoSub)
	message, err := r.receive()
	if err != nil {
		t.Fatalf("no hello: %v", err)
	}
	var hello api.HelloEvent
	body, ok := strings.CutPrefix(message, "hello ")
	if err := json.Unmarshal([]byte(body), &hello); !ok || err != nil {
		t.Fatalf("first message = %q (%v), want hello", message, err)
	}
	return r, hello
}

// event reads one event. The hello is repeated each second, and does not count.
func (r *raw) event() (string, error) {
	for {
		message, err := r.receive()
		if err != nil || !strings.HasPrefix(message, "hello ") {
			return message, err
		}
	}
}

func TestPublish(t *testing.T) {
	c := serve(t, Options{}, echo)
	r, hello := subscribe(t, c)
	if len(hello.Last) != 0 {
		t.Errorf("hello of a daemon without events = %v, want none", hello.Last)
	}
	for i := range 2 {
		if err := c.Publish(api.TopicChanges, changeEvent(uint64(43+i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Publish(api.TopicStatus, &api.StatusEvent{Kind: "Service", Name: "web", State: "Ready"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`changes {"seq":1,"revision":43,"kind":"Service","name":"web","action":"updated"}`,
		`changes {"seq":2,"revision":44,"kind":"Service","name":"web","action":"updated"}`,
		`status {"seq":1,"kind":"Service","name":"web","state":"Ready"}`,
	} {
		if got, err := r.event(); err != nil || got != want {
			t.Errorf("event = %s, %v; want %s", got, err, want)
		}
	}
	_, hello = subscribe(t, c)
	if hello.Last["changes"] != 2 || hello.Last["status"] != 1 || len(hello.Last) != 2 {
		t.Errorf("hello = %v, want changes 2 and status 1", hello.Last)
	}
	if n := countOf(c.events); n != 2 {
		t.Errorf("%d subscribers, want 2", n)
	}
}

type badEvent struct {
	api.Event
	C chan int
}

func TestPublishTakesNoNumberForAnEventThatCannotBeEncoded(t *testing.T) {
	c := serve(t, Options{}, echo)
	r, _ := subscribe(t, c)
	if err := c.Publish(api.TopicChanges, &badEvent{}); err == nil {
		t.Error("a channel was encoded")
	}
	if err := c.Publish(api.TopicChanges, changeEvent(9)); err != nil {
		t.Fatal(err)
	}
	got, err := r.event()
	if err != nil || !strings.HasPrefix(got, `changes {"seq":1,`) {
		t.Errorf("event = %s, %v; want number 1", got, err)
	}
}

// countOf returns the number of connections to a socket after the handshake.
func countOf(e *endpoint) (count int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, shaken := range e.conns {
		if shaken {
			count++
		}
	}
	return count
}

// TestHelloMeetsNumbers subscribes repeatedly while events are published: after its hello, a
// subscriber must detect each lost event.
func TestHelloMeetsNumbers(t *testing.T) {
	c := serve(t, Options{}, echo)
	stop := make(chan struct{})
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := c.Publish(api.TopicChanges, changeEvent(1)); err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched()
			}
		}
	})
	defer publishing.Wait()
	defer close(stop)
	for range 100 {
		r, hello := subscribe(t, c)
		next := hello.Last["changes"] + 1
		message, err := r.receive()
		for err == nil && strings.HasPrefix(message, "hello ") { // it is repeated each second
			if next, err = lastChange(message); err == nil {
				next++
				message, err = r.receive()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		var event api.ChangeEvent
		if err := json.Unmarshal([]byte(strings.TrimPrefix(message, "changes ")), &event); err != nil {
			t.Fatal(err)
		}
		if event.Seq > next {
			t.Fatalf("hello said %d, and the first event is %d: those between are lost unseen", next-1, event.Seq)
		}
		_ = r.Close() // it was only read
	}
}

// lastChange returns the number of the last change that a hello reports.
func lastChange(message string) (uint64, error) {
	var hello api.HelloEvent
	err := json.Unmarshal([]byte(strings.TrimPrefix(message, "hello ")), &hello)
	return hello.Last["changes"], err
}

// TestSlowSubscriber: a subscriber that does not read uses a bounded
// queue and is disconnected; the other subscribers receive everything.
func TestSlowSubscriber(t *testing.T) {
	c := serve(t, Options{Limits: Limits{WriteTimeout: testnet.OnThisMachine(300 * time.Millisecond)}}, echo)
	for range 4 {
		subscribe(t, c) // this subscriber stops reading
	}
	reader, _ := subscribe(t, c)
	const count = 20000
	read := make(chan uint64, count)
	go func() {
		defer close(read)
		for range count {
			message, err := reader.event()
			var event api.ChangeEvent
			if err != nil || json.Unmarshal([]byte(strings.TrimPrefix(message, "changes ")), &event) != nil {
				return
			}
			read <- event.Seq
		}
	}()
	before := heap()
	message := strings.Repeat("x", 1000)
	for i := range uint64(count) {
		event := changeEvent(i)
		event.Name = message
		if err := c.Publish(api.TopicChanges, event); err != nil {
			t.Fatal(err)
		}
		if i%512 == 511 { // publish no faster than the reader reads
			for seq := range read {
				if seq == i+1 {
					break
				}
			}
		}
	}
	// Four queues of 1024 events, mostly shared, and the socket buffers may be in use.
	if grown := int64(heap()) - int64(before); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	eventually(t, "subscribers that do not read are disconnected", func() bool { return countOf(c.events) == 1 })
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestOtherSubscribers receives events with other implementations.
func TestOtherSubscribers(t *testing.T) {
	c := serve(t, Options{}, echo)
	for name, args := range map[string][]string{
		"nanocat": {"--sub", "--connect", "ipc://" + eventsPath(c), "--ascii", "--subscribe", "changes "},
		"nngcat":  {"--sub", "--dial", "ipc://" + eventsPath(c), "--quoted", "--subscribe", "changes "},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("%s is not installed (.ci/setup test installs it)", name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			eventually(t, "the one before is gone", func() bool { return countOf(c.events) == 0 })
			cmd := exec.CommandContext(ctx, path, args...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); _ = cmd.Wait() }() // always fails: the process was killed
			eventually(t, "it subscribes", func() bool { return countOf(c.events) == 1 })
			lines := bufio.NewScanner(out)
			got := make(chan string, 1)
			go func() {
				if lines.Scan() {
					got <- lines.Text()
				}
				close(got)
			}()
			for { // a subscriber is counted a moment before mangos attaches it
				if err := c.Publish(api.TopicChanges, changeEvent(43)); err != nil {
					t.Fatal(err)
				}
				select {
				case line := <-got:
					line = strings.Trim(strings.ReplaceAll(line, `\"`, `"`), `"`) // nngcat prints quoted text: without --quoted it does not terminate lines
					if !strings.HasPrefix(line, `changes {"seq":`) || !strings.HasSuffix(line, `"revision":43,"kind":"Service","name":"web","action":"updated"}`) {
						t.Errorf("%s printed %q", name, line)
					}
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
}
