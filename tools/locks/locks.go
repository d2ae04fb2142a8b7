// SPDX-License-Identifier: Apache-2.0

// Command locks runs tests of packages with mutexes that record the order in which they are locked.
// It fails if two goroutines have locked two mutexes in opposite orders: such goroutines can wait for
// each other for ever, although they may not have done so in this run. Its arguments are arguments of
// go test.
//
// Sources and go.mod are not changed: copies with mutexes of the package go-deadlock take the places
// of the files while the tests, and the programs that they build, are compiled.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const detector = "github.com/sasha-s/go-deadlock"

// sources are the folders whose packages get other mutexes.
var sources = []string{"datapath", "loxilightd", "loxilight-agent"}

// settings is the path of a file that is added, and its content; %q is the folder of the reports. All
// programs contain this package. A mutex that is not available for a minute is reported, too.
const (
	settings        = "datapath/locks.go"
	settingsContent = `package datapath

import (
	"fmt"
	"os"
	"time"

	"github.com/sasha-s/go-deadlock"
)

func init() {
	report, err := os.OpenFile(fmt.Sprintf("%%s/%%d", %q, os.Getpid()), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	deadlock.Opts.LogBuf = report
	deadlock.Opts.DeadlockTimeout = time.Minute
	deadlock.Opts.OnPotentialDeadlock = func() {}
}
`
)

// separator begins each report of the package go-deadlock.
const separator = "POTENTIAL DEADLOCK:"

var (
	mutex    = regexp.MustCompile(`\bsync\.(RW)?Mutex\b`)
	location = regexp.MustCompile(`(?m)^(\S+\.go:\d+) .*<<<<<$`)
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "locks:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	folder, err := os.MkdirTemp("", "locks-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	reports := filepath.Join(folder, "reports")
	if err := os.Mkdir(reports, 0o700); err != nil {
		return err
	}
	overlay, err := replace(folder, reports)
	if err != nil {
		return err
	}
	module, err := require(folder)
	if err != nil {
		return err
	}
	tests := command("go", append([]string{"test"}, args...)...)
	tests.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay+" -modfile="+module))
	failed := tests.Run()
	found, err := read(reports)
	if err != nil {
		return err
	}
	for _, report := range found {
		fmt.Println(report)
	}
	if len(found) > 0 {
		return errors.Join(failed, fmt.Errorf("%d reports: two mutexes are locked in opposite orders, or one was not available for a minute", len(found)))
	}
	return failed
}

func command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c
}

// replace writes copies of the sources with other mutexes, and returns the path of a file for the
// compiler that lists them.
func replace(folder, reports string) (overlay string, err error) {
	replaced := map[string]string{}
	add := func(path, content string) error {
		original, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		replaced[original] = filepath.Join(folder, fmt.Sprintf("%d.go", len(replaced)))
		return os.WriteFile(replaced[original], []byte(content), 0o600)
	}
	for _, root := range sources {
		err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil || !mutex.Match(content) {
				return err
			}
			return add(path, detecting(string(content)))
		})
		if err != nil {
			return "", err
		}
	}
	if err := add(settings, fmt.Sprintf(settingsContent, reports)); err != nil {
		return "", err
	}
	content, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, content, 0o600)
}

// detecting returns a source with other mutexes. No line moves, so that the lines of reports are those
// of the source.
func detecting(source string) string {
	source = mutex.ReplaceAllString(source, "deadlock.${1}Mutex")
	source = strings.Replace(source, "import ", "import \""+detector+"\"; import ", 1)
	return source + "\nvar _ sync.Locker // the package may not be used otherwise\n"
}

// require writes a copy of go.mod that also requires the detector, and returns its path.
func require(folder string) (string, error) {
	module := filepath.Join(folder, "go.mod")
	for from, to := range map[string]string{"go.mod": module, "go.sum": filepath.Join(folder, "go.sum")} {
		content, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(to, content, 0o600); err != nil {
			return "", err
		}
	}
	return module, command("go", "get", "-modfile="+module, detector+"@v0.3.9").Run()
}

// read returns the reports, one for each pair of places.
func read(folder string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return nil, err
	}
	byPlaces := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, report := range strings.Split(string(content), separator)[1:] {
			var places []string
			for _, found := range location.FindAllStringSubmatch(report, 4) {
				places = append(places, found[1])
			}
			slices.Sort(places)
			byPlaces[strings.Join(slices.Compact(places), " ")] = separator + report
		}
	}
	var all []string
	for _, report := range byPlaces {
		all = append(all, report)
	}
	slices.Sort(all)
	return all, nil
}
