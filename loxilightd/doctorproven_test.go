// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"os"

	"github.com/loxilight/loxilight/api/report"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
	"github.com/loxilight/loxilight/loxilightd/internal/doctor"
)

// provenHooks in the environment of a test binary that runs as loxilightd makes it run as
// [examineProven], with the value as how programs are attached.
const provenHooks = "LL_TEST_PROVEN_HOOKS"

// examineProven runs the doctor as main does, except that it does not load the programs: an earlier
// examination has proven that the kernel accepts them.
func examineProven(use string) int {
	o, code, ok := parse(os.Args[1:], os.Stderr)
	if !ok {
		return code
	}
	cfg, err := config.Load(o.config)
	if err != nil {
		printError(os.Stderr, err)
		return exitConfig
	}
	found := doctor.Run(context.Background(), doctor.Options{
		Config: cfg, ConfigFile: o.config, Version: version, Fix: o.fix, Objects: o.objects,
		Inspect: func(i datapath.InspectOptions) (*datapath.Inspection, error) {
			i.Config = planeConfig(cfg)
			return backends.Inspect(cfg.Backend, i)
		},
		Preflight: func() (datapath.Preflight, error) {
			return datapath.Preflight{OK: true, Hooks: datapath.PreflightHooks{OK: true, Use: use}}, nil
		},
	})
	return cmp.Or(show(&o, found, report.Style{}.Text(found), os.Stdout, os.Stderr), exitCode(found.Findings))
}
