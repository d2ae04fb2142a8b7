// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/report"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
	"github.com/loxilight/loxilight/loxilightd/internal/doctor"
)

// examine runs the doctor and returns the exit code: 1 if errors remain.
func examine(ctx context.Context, cfg *config.Config, cfgErr error, o *options, stdout, stderr io.Writer) int {
	if cfgErr != nil {
		cfg = nil // unless the path names an instance
		if name := instanceOf(o.config); name != "" {
			cfg = config.Default(name)
		}
	}
	found := doctor.Run(ctx, doctor.Options{
		Config: cfg, ConfigFile: o.config, ConfigErr: cfgErr, Version: version, Fix: o.fix, Objects: o.objects,
		Inspect: func(i datapath.InspectOptions) (*datapath.Inspection, error) {
			i.Config = planeConfig(cfg)
			return backends.Inspect(cfg.Backend, i)
		},
		Preflight: func() (datapath.Preflight, error) { return backends.Preflight(cfg.Backend, planeConfig(cfg)) },
	})
	return cmp.Or(show(o, found, report.Style{}.Text(found), stdout, stderr), exitCode(found.Findings))
}

// instanceOf returns the instance whose configuration file is at path, or an empty string if the
// path does not belong to any particular instance.
func instanceOf(path string) string {
	suffix, ours := strings.CutPrefix(filepath.Dir(path), "/etc/loxilight")
	switch name := strings.TrimPrefix(suffix, "-"); {
	case !ours || filepath.Base(path) != "loxilightd.yaml":
		return ""
	case suffix == "":
		return config.DefaultInstance
	case name != suffix && config.IsInstance(name):
		return name
	}
	return ""
}

// show prints a report, as JSON or as text. It returns an exit code if it cannot.
func show(o *options, v any, text string, stdout, stderr io.Writer) (code int) {
	var err error
	if o.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(v)
	} else {
		_, err = io.WriteString(stdout, text)
	}
	if err != nil {
		printError(stderr, err)
		return exitFailed
	}
	return 0
}

// exitCode returns 1 if errors remain.
func exitCode(found []api.Finding) int {
	if slices.ContainsFunc(found, func(f api.Finding) bool { return f.Severity == api.SeverityError && f.Left() }) {
		return exitFailed
	}
	return 0
}
