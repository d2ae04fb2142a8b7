// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api"
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
	report := doctor.Run(ctx, doctor.Options{
		Config: cfg, ConfigFile: o.config, ConfigErr: cfgErr, Version: version, Fix: o.fix, Objects: o.objects,
		Inspect: backends.Inspect, Preflight: backends.Preflight,
	})
	if err := printReport(stdout, report, o.json); err != nil {
		fmt.Fprintf(stderr, "loxilightd: %v\n", err)
		return exitFailed
	}
	for i := range report.Findings {
		if f := &report.Findings[i]; f.Severity == api.SeverityError && f.Left() {
			return exitFailed
		}
	}
	return 0
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

func printReport(w io.Writer, r *api.DoctorReport, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		if _, err := fmt.Fprintf(w, "%s %s: %s\n  why: %s\n  do: %s\n", f.Severity, f.Object, f.What, f.Why, f.Do); err != nil {
			return err
		}
		if f.Fixed != "" {
			fmt.Fprintf(w, "  repaired: %s\n", f.Fixed)
		}
		if f.FixError != "" {
			fmt.Fprintf(w, "  not repaired: %s\n", f.FixError)
		}
	}
	for _, u := range r.Unseen {
		fmt.Fprintf(w, "not seen: %s: %s\n", u.What, u.Why)
	}
	_, err := fmt.Fprintf(w, "loxilightd %s\n%d findings\n", r.Daemon, len(r.Findings))
	return err
}
