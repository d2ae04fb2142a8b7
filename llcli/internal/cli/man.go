// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages into a directory",
		Long: `Write the manual pages of llcli and of all its commands into a directory, which is created
if it does not exist. SOURCE_DATE_EPOCH sets their date.`,
		Example: "  llcli man /usr/local/share/man/man1",
		Args:    command.OneName("man", "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.Started = true
			date, err := manDate(a)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			pages := 0
			err = eachCommand(cmd.Root(), func(c *cobra.Command) error {
				pages++
				path := filepath.Join(args[0], manName(c)+".1")
				return os.WriteFile(path, []byte(manPage(a, c, date)), 0o644)
			})
			a.Printf("%s in %s\n", output.Plural(uint64(pages), "page"), args[0])
			return err
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
}

func manDate(a *command.App) (time.Time, error) {
	epoch := a.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		return a.Now(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0), nil
}

// eachCommand calls f for a command and for all subcommands that its help shows.
func eachCommand(cmd *cobra.Command, f func(*cobra.Command) error) error {
	cmd.InitDefaultHelpFlag()
	errs := []error{f(cmd)}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			errs = append(errs, eachCommand(c, f))
		}
	}
	return errors.Join(errs...)
}

// manName returns the name of a command's page, such as llcli-service-add.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the page of a command. cobra's own generator converts from Markdown, which has
// no lists of terms, and so prints options as one block.
func manPage(a *command.App, cmd *cobra.Command, date time.Time) string {
	r := roff{}
	r.macro("TH", strings.ToUpper(manName(cmd)), "1", date.UTC().Format("2006-01-02"), "loxilight "+a.Version, "loxilight")
	r.section("NAME")
	r.line(escape(manName(cmd)) + ` \- ` + escape(cmd.Short))
	r.section("SYNOPSIS")
	r.line(`\fB` + escape(cmd.CommandPath()) + `\fR` + escape(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())))
	r.section("DESCRIPTION")
	r.text(cmp.Or(cmd.Long, cmd.Short+"."))
	r.commands(cmd)
	r.flags("OPTIONS", cmd.NonInheritedFlags())
	r.flags("GLOBAL OPTIONS", cmd.InheritedFlags())
	if cmd.Example != "" {
		r.section("EXAMPLES")
		r.text(cmd.Example)
	}
	related := []string{}
	if cmd.HasParent() {
		related = append(related, manName(cmd.Parent())+"(1)")
	}
	for _, c := range cmd.Commands() {
		switch {
		case c.IsAdditionalHelpTopicCommand():
			r.section(strings.ToUpper(strings.ReplaceAll(c.Name(), "-", " ")))
			r.text(c.Long)
		case c.IsAvailableCommand() && c.Name() != "help":
			related = append(related, manName(c)+"(1)")
		}
	}
	r.section("SEE ALSO")
	r.line(escape(strings.Join(related, ", ")))
	return r.String()
}

// roff writes a manual page, in the macros of man(7).
type roff struct{ strings.Builder }

func (r *roff) line(text string) { r.WriteString(text + "\n") }

func (r *roff) macro(name string, args ...string) {
	for _, arg := range args {
		name += ` "` + strings.ReplaceAll(escape(arg), `"`, `\(dq`) + `"`
	}
	r.line("." + name)
}

func (r *roff) section(title string) { r.macro("SH", title) }

// text writes paragraphs; an indented paragraph is printed verbatim.
func (r *roff) text(text string) {
	for _, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		indented := strings.HasPrefix(paragraph, "  ")
		r.line(".PP")
		if indented {
			r.line(".RS 4\n.nf")
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			r.line(escape(strings.TrimPrefix(line, "  ")))
		}
		if indented {
			r.line(".fi\n.RE")
		}
	}
}

// term writes a term and its meaning.
func (r *roff) term(term, meaning string) {
	r.line(".TP\n" + term)
	r.line(escape(meaning))
}

func (r *roff) commands(cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	r.section("COMMANDS")
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			r.term(`\fB`+escape(manName(c))+`\fR(1)`, c.Short)
		}
	}
}

func (r *roff) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	r.section(title)
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		name, usage := pflag.UnquoteUsage(flag)
		term := `\fB` + escape("--"+flag.Name) + `\fR`
		if flag.Shorthand != "" {
			term = `\fB` + escape("-"+flag.Shorthand) + `\fR, ` + term
		}
		if name != "" {
			term += ` \fI` + escape(name) + `\fR`
		}
		r.term(term, usage)
	})
}

// escape escapes text so that roff prints it literally.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "^", `\(ha`, "~", `\(ti`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
