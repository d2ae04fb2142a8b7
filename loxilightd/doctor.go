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
	if err := show(stdout, o.json, found, report.Style{}.Text(found)); err != nil {
		fmt.Fprintf(stderr, "loxilightd: %v\n", err)
		return exitFailed
	}
	for i := range found.Findings {
		if f := &found.Findings[i]; f.Severity == api.SeverityError && f.Left() {
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

// show writes v as JSON, or its text.
func show(w io.Writer, asJSON bool, v any, text string) error {
	if !asJSON {
		_, err := io.WriteString(w, text)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
