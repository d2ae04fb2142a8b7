// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/spf13/cobra"
)

// Forms of output.
const (
	formatTable = "table"
	formatWide  = "wide" // a table with more columns
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name" // KIND/NAME of each object, one a line
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML, formatName}

// namesObjects marks, as an annotation, commands that show objects.
const namesObjects = "objects"

// checkFormat refuses unknown forms of output, and the form name of a command that neither shows
// nor changes objects.
func checkFormat(cmd *cobra.Command, format string) error {
	if !slices.Contains(formats, format) {
		return fmt.Errorf("--output %q: want one of %s", format, strings.Join(formats, ", "))
	}
	if format == formatName && cmd.Annotations[namesObjects] == "" && cmd.Flags().Lookup("dry-run") == nil {
		return fmt.Errorf("--output name: only for get, list and commands that change objects; want one of %s", strings.Join(formats[:len(formats)-1], ", "))
	}
	return nil
}

// isTable reports whether the output is for people, not programs.
func (a *app) isTable() bool { return a.output == formatTable || a.output == formatWide }

// printf writes to the output; its errors are reported when it is flushed.
func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }

// note prints a message for people that is no part of the output.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Err, "llcli: "+format+"\n", args...) // an error here cannot be reported
}

// printValue writes v, which must be valid as JSON, as one document.
func (a *app) printValue(v any) error {
	if a.output == formatYAML {
		text, err := document.ToYAML(v)
		if err != nil {
			return err
		}
		_, err = a.out.Write(text)
		return err
	}
	text, err := indentJSON(v, "")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s\n", text)
	return err
}

// indentJSON writes v as people read it.
func indentJSON(v any, prefix string) ([]byte, error) {
	data, err := document.Marshal(v)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	err = json.Indent(&buf, data, prefix, "  ")
	return buf.Bytes(), err
}

// listWriter writes values one by one: as a JSON list, or as YAML documents.
type listWriter struct {
	app   *app
	count int
}

func (l *listWriter) add(v any) error {
	l.count++
	if l.app.output == formatYAML {
		if l.count > 1 {
			l.app.printf("---\n")
		}
		return l.app.printValue(v)
	}
	separator := ",\n  "
	if l.count == 1 {
		separator = "[\n  "
	}
	text, err := indentJSON(v, "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.app.out, "%s%s", separator, text)
	return err
}

func (l *listWriter) end() {
	switch {
	case l.app.output == formatYAML:
	case l.count == 0:
		l.app.printf("[]\n")
	default:
		l.app.printf("\n]\n")
	}
}

// printLine writes v as JSON in one line, or as a YAML document of its own, so that readers of a
// stream can separate the values.
func (a *app) printLine(v any) error {
	if a.output == formatYAML {
		a.printf("---\n")
		return a.printValue(v)
	}
	text, err := document.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s\n", text)
	return err
}

// painter wraps text in a colour if it is set, for people who want colours.
type painter bool

func (a *app) painter() painter {
	return painter(a.Width() > 0 && a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb")
}

const (
	green  = "32"
	yellow = "33"
	red    = "31"
	bold   = "1"
)

func (p painter) paint(color, text string) string {
	if !p || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// stateDeleted is the state of a deleted object in a watch.
const stateDeleted = "Deleted"

// stateColor is the colour of a state of an object, a backend or the daemon.
func stateColor(state string) string {
	switch state {
	case api.StateReady, "ok", "healthy", "active":
		return green
	case api.StatePending, "draining", "unknown", "degraded":
		return yellow
	case api.StateError, "down", "unhealthy", stateDeleted:
		return red
	default:
		return ""
	}
}
