// SPDX-License-Identifier: Apache-2.0

// Package metrics maintains metrics, and writes them in the Prometheus text format 0.0.4. It is the
// small part of a client library that the agent needs.
package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Registry contains all metrics of a program. The zero value is ready for use, and safe for
// concurrent use.
type Registry struct {
	mu       sync.Mutex
	families []*family
}

// family contains all metrics with one name.
type family struct {
	name, help, kind string
	labels           []string
	buckets          []float64
	read             func() float64 // of a gauge, at each scrape

	mu     sync.Mutex
	series map[string]*series
}

type series struct {
	values []string
	value  float64
	counts []uint64 // of a histogram, for each bucket and the rest
	count  uint64
}

func (r *Registry) add(f *family) *family {
	f.series = map[string]*series{}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.families = append(r.families, f)
	return f
}

func (f *family) of(values []string) *series {
	if len(values) != len(f.labels) {
		panic(fmt.Sprintf("metric %s: %d values for %d labels", f.name, len(values), len(f.labels)))
	}
	key := strings.Join(values, "\x00")
	s := f.series[key]
	if s == nil {
		s = &series{values: slices.Clone(values), counts: make([]uint64, len(f.buckets)+1)}
		f.series[key] = s
	}
	return s
}

// Counter is a metric that only increases.
type Counter struct{ f *family }

// Counter makes a counter with labels.
func (r *Registry) Counter(name, help string, labels ...string) Counter {
	c := Counter{r.add(&family{name: name, help: help, kind: "counter", labels: labels})}
	if len(labels) == 0 {
		c.Add(0) // present from the beginning
	}
	return c
}

// Add adds to the counter with these values of its labels.
func (c Counter) Add(n float64, values ...string) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.of(values).value += n
}

// Gauge adds a gauge whose value read returns at each scrape.
func (r *Registry) Gauge(name, help string, read func() float64) {
	r.add(&family{name: name, help: help, kind: "gauge", read: read})
}

// Histogram counts observed values by size.
type Histogram struct{ f *family }

// Histogram makes a histogram; buckets are upper bounds, in ascending order.
func (r *Registry) Histogram(name, help string, buckets []float64, labels ...string) Histogram {
	return Histogram{r.add(&family{name: name, help: help, kind: "histogram", buckets: buckets, labels: labels})}
}

// Observe counts one value.
func (h Histogram) Observe(v float64, values ...string) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	s := h.f.of(values)
	i, _ := slices.BinarySearch(h.f.buckets, v)
	s.counts[i]++
	s.count++
	s.value += v
}

// ServeHTTP implements [http.Handler].
func (r *Registry) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_ = r.Write(w) // the client may be gone
}

// Write writes all metrics.
func (r *Registry) Write(w io.Writer) error {
	r.mu.Lock()
	families := slices.Clone(r.families)
	r.mu.Unlock()
	out := bufio.NewWriter(w)
	for _, f := range families {
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		f.write(out)
	}
	return out.Flush()
}

func (f *family) write(out *bufio.Writer) {
	if f.read != nil {
		fmt.Fprintf(out, "%s %s\n", f.name, number(f.read()))
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := make([]string, 0, len(f.series))
	for key := range f.series {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		s := f.series[key]
		if f.buckets == nil {
			fmt.Fprintf(out, "%s%s %s\n", f.name, f.text(s.values, ""), number(s.value))
			continue
		}
		var sum uint64
		for i, bound := range append(slices.Clip(f.buckets), math.Inf(1)) {
			sum += s.counts[i]
			fmt.Fprintf(out, "%s_bucket%s %d\n", f.name, f.text(s.values, number(bound)), sum)
		}
		fmt.Fprintf(out, "%s_sum%s %s\n%s_count%s %d\n", f.name, f.text(s.values, ""), number(s.value), f.name, f.text(s.values, ""), s.count)
	}
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// text returns labels as written after a name; le is the bound of a bucket.
func (f *family) text(values []string, le string) string {
	var parts []string
	for i, label := range f.labels {
		parts = append(parts, label+`="`+escape.Replace(values[i])+`"`)
	}
	if le != "" {
		parts = append(parts, `le="`+le+`"`)
	}
	if len(parts) == 0 {
		return ""
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func number(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
