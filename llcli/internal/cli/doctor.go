// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) doctorCommand() *cobra.Command {
	var o localOptions
	var fix bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the daemon, and say how to repair what is wrong",
		Long: `Look at everything that the data plane depends on, and say of each thing that is
not as it should be what it is, why it matters and what to do: the daemon and its
unit, files and groups, the kernel, what is pinned and attached, programs of
others on the same hooks, routes, kernel parameters, firewalls, memory.

It works whether the daemon runs, hangs or is stopped, is done within a minute,
and says what it could not see: run it as root. --fix mends what is ours (modes,
what was left behind, object files not read yet) and says what it did; what
belongs to others is never touched.

The exit code is 1 if errors are left; warnings and notes leave it at 0.`,
		Example: "  llcli doctor\n  llcli doctor --fix\n  llcli doctor -o json",
		Args:    noWords("doctor takes flags only"),
		RunE: a.runLocal(func(ctx context.Context, _ []string) error {
			config, err := a.configFile(&o)
			if err != nil {
				return err
			}
			args := []string{"--config", config, "--doctor", "--json"}
			if fix {
				args = append(args, "--fix")
			}
			if a.isTable() && a.Terminal != nil && a.Terminal() {
				a.note("checking this machine; the kernel verifies the programs, which may take ten seconds …")
			}
			out, code, err := a.loxilightd(ctx, args...)
			if err != nil {
				return err
			}
			var report api.DoctorReport
			if err := json.Unmarshal(out, &report); err != nil {
				return fmt.Errorf("loxilightd --doctor ended with exit code %d and no report: %w", code, err)
			}
			if a.isTable() {
				a.printReport(&report)
			} else if err := a.printValue(&report); err != nil {
				return err
			}
			if code != 0 {
				return &errSilent{ExitFailed}
			}
			return nil
		}),
	}
	o.bind(cmd)
	cmd.Flags().BoolVar(&fix, "fix", false, "repair what belongs to loxilight")
	return cmd
}

var severityColor = map[string]string{api.SeverityError: red, api.SeverityWarning: yellow}

// printReport shows the findings, repaired ones last.
func (a *app) printReport(r *api.DoctorReport) {
	mended := 0
	counts := map[string]uint64{}
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Left() {
			a.printFinding(f)
			counts[f.Severity]++
		} else {
			mended++
		}
	}
	for i := range r.Findings {
		if f := &r.Findings[i]; !f.Left() {
			a.printf("%s  %s %s\n", a.painter().paint(green, "mended"), clean(f.Object), clean(f.What))
			a.wrapped("did", f.Fixed)
		}
	}
	if len(r.Unseen) > 0 {
		t := a.table(column{title: "NOT SEEN"}, column{title: "WHY", flexible: true})
		for _, u := range r.Unseen {
			t.add(cell{text: u.What}, cell{text: u.Why})
		}
		t.flush()
	}
	if len(r.Findings) > 0 || len(r.Unseen) > 0 {
		a.printf("\n")
	}
	if counts[api.SeverityError]+counts[api.SeverityWarning]+counts[api.SeverityNote] == 0 {
		a.printf("nothing is wrong with instance %s; checked: %s\n", clean(r.Instance), strings.Join(r.Checked, ", "))
		return
	}
	if r.Daemon != "" {
		a.printf("loxilightd %s\n", clean(r.Daemon))
	}
	a.printf("%s, %s, %s\n", plural(counts[api.SeverityError], "error"), plural(counts[api.SeverityWarning], "warning"),
		plural(counts[api.SeverityNote], "note"))
}

func (a *app) printFinding(f *api.Finding) {
	a.printf("%s  %s\n", a.painter().paint(severityColor[f.Severity], f.Severity), a.painter().paint(bold, clean(f.Object)))
	a.wrapped("what", f.What)
	a.wrapped("why", f.Why)
	do := f.Do
	if f.Fixable && f.FixError == "" {
		do += " (llcli doctor --fix does it)"
	}
	a.wrapped("do", do)
	if f.FixError != "" {
		a.wrapped("left", "not mended: "+f.FixError)
	}
}

// wrapped writes a text below its title so that it fits the terminal.
func (a *app) wrapped(title, text string) {
	width := a.Width()
	if width == 0 {
		width = 1 << 20
	}
	const indent = 6
	line := fmt.Sprintf("  %-4s", title)
	used := 0
	for _, word := range strings.Fields(clean(text)) {
		if used > 0 && len([]rune(line))+1+len([]rune(word)) > width {
			a.printf("%s\n", line)
			line, used = strings.Repeat(" ", indent), 0
		}
		line += " " + word
		used++
	}
	a.printf("%s\n", line)
}
