// SPDX-License-Identifier: Apache-2.0

// Package doctor finds faults in an instance of loxilightd and in its machine. It reports why they
// matter and what to do about them, and can repair our own files and kernel objects. It runs in a
// process of its own: the daemon may be running, hung or stopped. It changes only what
// docs/ownership.md lists, and changes nothing unless Options.Fix is set. For preflight, it runs
// the checks that need no instance.
package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// Time limits for the whole run, for one call to the daemon, and for one program.
const (
	totalTimeout   = 60 * time.Second
	callTimeout    = 3 * time.Second
	commandTimeout = 5 * time.Second
)

// Options are the parameters of [Run].
type Options struct {
	Config     *config.Config
	ConfigFile string
	ConfigErr  error // why Config contains defaults (or is nil) instead of the content of ConfigFile
	Version    string
	StartOnly  bool // only whether the daemon would start, without its instance: for --preflight
	Fix        bool // repair our own files and kernel objects
	Objects    bool // also report the desired objects

	// Inspect reads the state of the data plane in the kernel.
	Inspect func(o datapath.InspectOptions) (*datapath.Inspection, error)
	// Preflight returns the expected result of starting the data plane.
	Preflight func() (datapath.Preflight, error)

	Root string // prefix of the paths of the machine's own files; empty: this machine
	// Run runs one of the machine's programs and returns its output; nil: programs are run by
	// os/exec.
	Run func(ctx context.Context, name string, args ...string) (string, error)
}

// finding is one finding and its repair; fix repairs the fault and returns a description of the
// repair.
type finding struct {
	api.Finding
	fix func() (string, error)
}

// examiner contains the state of one examination.
type examiner struct {
	Options
	ctx      context.Context
	findings []finding
	unseen   []api.Unseen
	checked  []string

	unit    unit
	daemon  daemon
	desired desired
	plane   *datapath.Inspection
	use     string // how programs are attached: tcx, tc; empty: unknown
}

// need is what a check needs. Each need includes those before it.
type need int

const (
	needFile     need = iota // the configuration file
	needKernel               // the privileges to load programs
	needInstance             // the daemon and its store, and the machine
)

// check examines one part of an instance.
type check struct {
	part  string // in the report
	needs need
	run   func(*examiner)
}

// checks are all checks, in the order in which they run.
var checks = []check{
	{"configuration", needFile, (*examiner).checkConfig},
	{"files, modes and groups", needInstance, (*examiner).checkFiles},
	{"unit", needInstance, (*examiner).checkUnit},
	{"daemon", needInstance, (*examiner).checkDaemon},
	{"desired state", needInstance, (*examiner).checkState},
	{"kernel and BPF file system", needInstance, (*examiner).checkKernel},
	{"start of the daemon", needKernel, (*examiner).checkPreflight},
	{"programs, pins and devices", needInstance, (*examiner).checkPlane},
	{"programs of others", needInstance, (*examiner).checkChains},
	{"routes and kernel parameters", needInstance, (*examiner).checkNetwork},
	{"pods", needInstance, (*examiner).checkPods},
	{"mirrors", needInstance, (*examiner).checkMirrors},
	{"firewalls", needInstance, (*examiner).checkFirewall},
	{"login", needInstance, (*examiner).checkLogin},
	{"network managers", needInstance, (*examiner).checkNetworkd},
	{"memory", needInstance, (*examiner).checkMemory},
}

// Run examines the instance. It takes at most a minute, even if other parts hang.
func Run(ctx context.Context, o Options) *api.DoctorReport {
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	if o.Run == nil {
		o.Run = runCommand
	}
	x := &examiner{Options: o, ctx: ctx}
	has := needInstance
	switch {
	case errors.Is(x.ConfigErr, fs.ErrNotExist) || x.Config == nil: // the instance does not exist, or is unknown
		has = needFile
	case x.StartOnly:
		has = needKernel
	default:
		x.askUnit()
		x.askDaemon()
		x.readStore()
		x.inspect()
	}
	for _, c := range checks {
		if c.needs <= has {
			c.run(x)
			x.checked = append(x.checked, c.part)
		}
	}
	if x.Fix && x.ConfigErr == nil { // with the default configuration, it might repair a different instance
		x.mend()
	}
	return x.report(has)
}

func (x *examiner) report(has need) *api.DoctorReport {
	instance := ""
	if x.Config != nil {
		instance = x.Config.Instance
	}
	r := &api.DoctorReport{
		Instance: instance, Config: x.ConfigFile, Version: x.Version,
		Checked: x.checked, Unseen: x.unseen, Findings: make([]api.Finding, 0, len(x.findings)),
	}
	for i := range x.findings {
		r.Findings = append(r.Findings, x.findings[i].Finding)
	}
	if has == needInstance {
		r.Daemon = x.describeDaemon()
	}
	if x.Objects {
		for _, o := range x.desired.objects {
			r.Objects = append(r.Objects, api.Object{Kind: o.Kind, Name: o.Name, Owner: o.Owner, Labels: o.Labels, Spec: json.RawMessage(o.Spec), Revision: o.Revision})
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b api.Finding) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Object, b.Object))
	})
	return r
}

func rank(severity string) int {
	return slices.Index([]string{api.SeverityError, api.SeverityWarning, api.SeverityNote}, severity)
}

// mend carries out all possible repairs, in the order of the findings.
func (x *examiner) mend() {
	for i := range x.findings {
		f := &x.findings[i]
		if f.fix == nil {
			continue
		}
		done, err := f.fix()
		if err != nil {
			f.FixError = err.Error()
		} else {
			f.Fixed = done
		}
	}
}

// attached returns the ports to which this instance's programs are attached.
func (x *examiner) attached() []datapath.InspectedPort {
	return x.plane.Ports
}

// words are the texts of a finding.
type words struct{ what, why, do string }

func (x *examiner) find(severity, id, object string, w words, fix func() (string, error)) {
	x.findings = append(x.findings, finding{
		Finding: api.Finding{ID: id, Severity: severity, Object: object, What: w.what, Why: w.why, Do: w.do, Fixable: fix != nil},
		fix:     fix,
	})
}

// hidden records something that could not be examined.
func (x *examiner) hidden(what string, why error) {
	x.unseen = append(x.unseen, api.Unseen{What: what, Why: why.Error()})
}

// path returns the path of one of the machine's files.
func (x *examiner) path(p string) string {
	if x.Root == "" {
		return p
	}
	return filepath.Join(x.Root, p)
}

// read returns the content of one of the machine's files without surrounding white space; it
// returns false if the file does not exist or is not readable.
func (x *examiner) read(p string) (string, bool) {
	b, err := os.ReadFile(x.path(p))
	return strings.TrimSpace(string(b)), err == nil
}

// command runs one of the machine's programs for at most commandTimeout.
func (x *examiner) command(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(x.ctx, commandTimeout)
	defer cancel()
	return x.Run(ctx, name, args...)
}

func runCommand(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && len(e.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(e.Stderr)))
	}
	return string(out), err
}
