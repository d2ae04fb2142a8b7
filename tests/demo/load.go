// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// load sends requests to both frontends continuously, each on a new connection.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	answers  map[string]uint64 // by server, since take
	since    time.Time
	count    uint64
	failures []error
}

const (
	loadWorkers  = 4                     // for each frontend
	loadInterval = 20 * time.Millisecond // between two requests of one worker
)

func (d *demo) startLoad() *load {
	l := &load{stop: make(chan struct{}), answers: make(map[string]uint64), since: time.Now()}
	client := d.client.HTTPClient(5 * time.Second)
	for _, address := range frontends {
		for range loadWorkers {
			l.wg.Go(func() { l.work(client, address) })
		}
	}
	d.Cleanup(l.end)
	return l
}

func (l *load) work(client *http.Client, address string) {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-ticker.C:
		}
		name, err := get(client, address)
		l.mu.Lock()
		l.count++
		if err != nil {
			l.failures = append(l.failures, err)
		} else {
			l.answers[name]++
		}
		l.mu.Unlock()
	}
}

// get requests the front page and returns the name of the server.
func get(client *http.Client, address string) (string, error) {
	r, err := client.Get("http://" + address + "/")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	name, _, found := strings.Cut(string(body), " ")
	if err == nil && (r.StatusCode != http.StatusOK || !found) {
		err = fmt.Errorf("%s answered %s: %q", address, r.Status, body)
	}
	return name, err
}

// end stops the requests; it may be called twice.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}

// take returns the answers since its last call, and how long ago that was.
func (l *load) take() (map[string]uint64, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answers, took := l.answers, time.Since(l.since)
	l.answers, l.since = make(map[string]uint64), time.Now()
	return answers, took
}

func (l *load) total() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// show prints the answers since the last call of take.
func (l *load) show(what string) {
	answers, took := l.take()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, float64(answers[name])/took.Seconds()))
	}
	fmt.Printf("\n  %-22s answers a second: %s\n", what, strings.Join(parts, ", "))
}
