// SPDX-License-Identifier: Apache-2.0

// Package testreport separates the parts of docs/benchmarks.md that different programs measure, so
// that a run of one program replaces only its own part. The package measures nothing itself.
package testreport

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// The parts that programs other than make bench write.
const (
	Stages     = "stages"     // make bench-stages
	Policies   = "policies"   // make bench-stages
	Idle       = "idle"       // make bench-idle
	Kubernetes = "kubernetes" // make scale-k8s
)

// Parts are these parts in the order in which they stand.
var Parts = []string{Stages, Policies, Idle, Kubernetes}

// before is the text before which a new part is inserted.
const before = "\n## Review notes\n"

func marks(name string) (begin, end string) {
	return "<!-- part " + name + " -->\n", "<!-- end of part " + name + " -->\n"
}

// find returns the position of a part in a report, including its marks; ok is false if there is no
// such part.
func find(report, name string) (from, to int, ok bool, err error) {
	begin, end := marks(name)
	from, last := strings.Index(report, begin), strings.Index(report, end)
	switch {
	case from < 0 && last < 0:
		return 0, 0, false, nil
	case from < 0 || last < from || strings.Count(report, begin) > 1 || strings.Count(report, end) > 1:
		return 0, 0, false, fmt.Errorf("the marks %q and %q do not stand once each, in this order", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return from + len(begin), last, true, nil
}

// Part returns a part of a report, or an empty string if there is no such part.
func Part(report, name string) (string, error) {
	from, to, _, err := find(report, name)
	return report[from:to], err
}

// Put replaces the part with the given name in a report. A new part is inserted before the review
// notes; an empty part is removed.
func Put(report, name, part string) (string, error) {
	from, to, ok, err := find(report, name)
	switch {
	case err != nil:
		return "", err
	case ok:
		return report[:from] + part + report[to:], nil
	case part == "":
		return report, nil
	}
	begin, end := marks(name)
	at := strings.Index(report, before)
	if at < 0 {
		return "", fmt.Errorf("no %q that the part %s would come before", strings.TrimSpace(before), name)
	}
	return report[:at] + "\n" + begin + part + end + report[at:], nil
}

// Write replaces a part in the document at path, or inserts it.
func Write(path, name, part string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	whole, err := Put(string(old), name, part)
	if err != nil {
		return fmt.Errorf("%s is unchanged: %w", path, err)
	}
	return os.WriteFile(path, []byte(whole), 0o644)
}

// Machine describes the machine on which the measurements were made in one line.
func Machine() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("name of the kernel: %w", err)
	}
	model := runtime.GOARCH
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	minute, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("Linux %s, %d CPUs (%s), load average %s when it began",
		unix.ByteSliceToString(name.Release[:]), runtime.NumCPU(), model, minute), nil
}
