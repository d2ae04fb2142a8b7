// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// options are the command line options.
type options struct {
	config                  string
	check, version          bool
	preflight, detach, json bool
	doctor, fix, objects    bool
	makeSwitch              bool
}

// parse returns the options, or the exit code.
func parse(args []string, stderr io.Writer) (o options, code int, ok bool) {
	flags := flag.NewFlagSet("loxilightd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.config, "config", config.DefaultFile, "configuration `FILE`")
	flags.BoolVar(&o.check, "check", false, "check the configuration, report its errors, and stop")
	flags.BoolVar(&o.version, "version", false, "print the version and stop")
	flags.BoolVar(&o.preflight, "preflight", false, "load the programs on this kernel without attaching them, check whether the pinned maps can be adopted, and stop")
	flags.BoolVar(&o.detach, "detach", false, "detach the programs from all devices, remove all pins, and stop: nothing is forwarded until the next start")
	flags.BoolVar(&o.makeSwitch, "make-switch", false, "create the network namespace of the switch if it does not exist, and stop; the daemon runs this when it needs it")
	flags.BoolVar(&o.doctor, "doctor", false, "check this instance and the machine, print the findings, and stop; as llcli doctor, without colours")
	flags.BoolVar(&o.fix, "fix", false, "with --doctor: repair what belongs to loxilight")
	flags.BoolVar(&o.objects, "objects", false, "with --doctor: the desired objects as well")
	flags.BoolVar(&o.json, "json", false, "with --preflight and --doctor: the report as JSON")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, 0, false
	} else if err != nil {
		return o, exitUsage, false // reported by flags
	}
	switch {
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "loxilightd: unexpected argument %q\n", flags.Arg(0))
	case o.preflight && o.detach, o.doctor && (o.preflight || o.detach), o.makeSwitch && (o.preflight || o.detach || o.doctor):
		fmt.Fprintln(stderr, "loxilightd: --preflight, --detach, --make-switch and --doctor are mutually exclusive")
	case o.json && !o.preflight && !o.doctor:
		fmt.Fprintln(stderr, "loxilightd: --json requires --preflight or --doctor")
	case (o.fix || o.objects) && !o.doctor:
		fmt.Fprintln(stderr, "loxilightd: --fix and --objects require --doctor")
	default:
		return o, 0, true
	}
	return o, exitUsage, false
}
