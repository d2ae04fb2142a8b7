// SPDX-License-Identifier: Apache-2.0

package cyclonus

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/internal/testcluster"
)

// TestCyclonus runs all cases of cyclonus, of all tags, with each address family, to the addresses of
// pods and to their Services. cyclonus evaluates the policies itself; no packet may differ.
//
// LOXILIGHT_CYCLONUS_RUN selects cases by a regular expression.
func TestCyclonus(t *testing.T) {
	logrus.SetLevel(logrus.ErrorLevel)
	selected, err := regexp.Compile(os.Getenv("LOXILIGHT_CYCLONUS_RUN"))
	if err != nil {
		t.Fatal(err)
	}
	k := newKubernetes(t, testcluster.New(t, programs, nodeCount))
	for family, name := range []string{"IPv4", "IPv6"} {
		k.family = family
		namespaces := []string{"x", "y", "z"}
		resources, err := probe.NewDefaultResources(k, namespaces, []string{"a", "b", "c"}, []int{80, 81},
			[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, nil, 60, true, "")
		if err != nil {
			t.Fatal(err)
		}
		interpreter := newInterpreter(k, resources)
		zc, err := resources.GetPod("z", "c")
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []generator.ProbeMode{generator.ProbeModePodIP, generator.ProbeModeServiceName} {
			t.Run(name+" "+string(mode), func(t *testing.T) {
				r := &report{begin: time.Now(), tags: map[string]int{}}
				for _, c := range generator.NewTestCaseGenerator(true, zc.IP, namespaces, nil, nil).GenerateAllTestCases() {
					if !selected.MatchString(c.Description) {
						continue
					}
					for _, s := range c.Steps {
						s.Probe.Mode = mode
					}
					k.begin()
					result := interpreter.ExecuteTestCase(c)
					if err := errors.Join(result.Err, k.fault); err != nil {
						t.Fatalf("%s: %v", c.Description, err)
					}
					if wrong := r.compare(result, k.failed); len(wrong) > 0 {
						t.Errorf("%s (%s)\n%s", c.Description, strings.Join(c.Tags.Keys(), ", "), k.explain(result, wrong))
					}
				}
				t.Log(r)
				if n := len(r.repeated); n > 0 {
					t.Logf("blocked at the first attempt only, for example: %v", r.repeated[:min(n, 20)])
				}
			})
		}
	}
}

// newInterpreter returns what executes cases. The table of all pods and ports that it prints is dropped.
func newInterpreter(k *kubernetes, resources *probe.Resources) *connectivity.Interpreter {
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	os.Stdout = nil
	return connectivity.NewInterpreter(k, resources, &connectivity.InterpreterConfig{
		ResetClusterBeforeTestCase: true, VerifyClusterStateBeforeTestCase: true, KubeProbeRetries: 1, BatchJobs: true, IgnoreLoopback: true,
	})
}

// report counts the results of a pass.
type report struct {
	begin                          time.Time
	cases, steps, results, allowed int
	wrong, wrongCases              int
	repeated                       []difference
	tags                           map[string]int
}

func (r *report) String() string {
	var tags []string
	for _, tag := range slices.Sorted(maps.Keys(r.tags)) {
		tags = append(tags, fmt.Sprintf("%s %d", tag, r.tags[tag]))
	}
	return fmt.Sprintf("%d cases, %d steps, %d results (%d allowed), %d wrong in %d cases, %d right at the second attempt only, %s; cases by tag: %s",
		r.cases, r.steps, r.results, r.allowed, r.wrong, r.wrongCases, len(r.repeated), time.Since(r.begin).Round(time.Second), strings.Join(tags, ", "))
}

// difference is a result that cyclonus does not expect.
type difference struct {
	name          string // of the case
	step          int
	from, to, key string
	got, want     string
	err           error // why the probe failed
}

func (d difference) String() string {
	return fmt.Sprintf("%s, step %d: %s to %s %s: %s, want %s (%v)", d.name, d.step+1, d.from, d.to, d.key, d.got, d.want, d.err)
}

// compare returns the differences between the results and those that cyclonus expects. A packet that
// passes although it must not is wrong, whatever the second attempt shows. cyclonus evaluates
// policies for a pod that connects to itself; by the API, such packets always pass.
func (r *report) compare(result *connectivity.Result, failed map[attempt]failure) (wrong []difference) {
	r.cases++
	for _, tag := range result.TestCase.Tags.Keys() {
		r.tags[tag]++
	}
	note := func(d difference) {
		same := func(o difference) bool {
			return o.step == d.step && o.from == d.from && o.to == d.to && o.key == d.key
		}
		if !slices.ContainsFunc(wrong, same) { // it may be wrong in both attempts
			wrong = append(wrong, d)
		}
	}
	time := 0
	for i, step := range result.Steps {
		r.steps++
		for repetition, seen := range step.KubeProbes {
			last := repetition == len(step.KubeProbes)-1
			for _, pair := range seen.Wrapped.Keys() {
				expected := step.SimulatedProbe.Get(pair.From, pair.To).JobResults
				for key, got := range seen.Get(pair.From, pair.To).JobResults {
					want := probe.ConnectivityUnknown
					if e := expected[key]; e != nil {
						want = e.Combined
					}
					if pair.From == pair.To && want == probe.ConnectivityBlocked {
						want = probe.ConnectivityAllowed
					}
					d := difference{result.TestCase.Description, i, pair.From, pair.To, key, string(got.Combined), string(want), failed[attempt{time, pair.From, pair.To, key}].err}
					switch {
					case want == probe.ConnectivityBlocked && failed[attempt{time, pair.From, pair.To, key}].arrived:
						d.got = "no answer, but the request arrived"
						note(d)
					case got.Combined != want && (last || want == probe.ConnectivityBlocked):
						note(d)
					case got.Combined != want:
						r.repeated = append(r.repeated, d)
					}
					if last {
						r.results++
						if want == probe.ConnectivityAllowed {
							r.allowed++
						}
					}
				}
				if last && len(expected) != len(seen.Get(pair.From, pair.To).JobResults) {
					wrong = append(wrong, difference{result.TestCase.Description, i, pair.From, pair.To, "", "another number of results", fmt.Sprint(len(expected)), nil})
				}
			}
			time++
		}
	}
	r.wrong += len(wrong)
	if len(wrong) > 0 {
		r.wrongCases++
	}
	return wrong
}

// explain describes differences, with the policies, and with what the daemon says about the first one
// in the last step, whose policies are still in force.
func (k *kubernetes) explain(result *connectivity.Result, wrong []difference) string {
	var b strings.Builder
	for i, d := range wrong {
		if i == 10 {
			fmt.Fprintf(&b, "and %d more\n", len(wrong)-i)
			break
		}
		fmt.Fprintln(&b, d)
	}
	last := -1
	for _, d := range wrong {
		if d.step != last {
			policies, err := json.Marshal(result.Steps[d.step].KubePolicies)
			fmt.Fprintf(&b, "policies of step %d: %s %v\n", d.step+1, policies, err)
			last = d.step
		}
	}
	if d := wrong[len(wrong)-1]; d.step == len(result.Steps)-1 {
		protocol, port, _ := strings.Cut(d.key, "/")
		for _, end := range []string{d.from, d.to} {
			if p := k.pods[end]; p != nil {
				out, _, err := p.node.TryLLCLI("policy", "check", d.from, d.to, strings.ToLower(protocol)+"/"+port)
				fmt.Fprintf(&b, "%s: policy check %s %s %s: %v\n%s\n", p.node.Name(), d.from, d.to, d.key, err, out)
			}
		}
	}
	return b.String()
}
