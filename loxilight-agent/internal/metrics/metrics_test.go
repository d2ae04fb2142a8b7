// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	var r Registry
	c := r.Counter("requests_total", "Requests received.", "code")
	c.Add(2, "500")
	c.Add(1, `a"b`)
	r.Counter("none_total", "Nothing.")
	r.Gauge("up", "Whether.", func() float64 { return 1 })
	h := r.Histogram("seconds", "How long.", []float64{0.1, 2.5})
	for _, v := range []float64{0.1, 0.2, 3} {
		h.Observe(v)
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := `# HELP requests_total Requests received.
# TYPE requests_total counter
requests_total{code="500"} 2
requests_total{code="a\"b"} 1
# HELP none_total Nothing.
# TYPE none_total counter
none_total 0
# HELP up Whether.
# TYPE up gauge
up 1
# HELP seconds How long.
# TYPE seconds histogram
seconds_bucket{le="0.1"} 1
seconds_bucket{le="2.5"} 2
seconds_bucket{le="+Inf"} 3
seconds_sum 3.3
seconds_count 3
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
