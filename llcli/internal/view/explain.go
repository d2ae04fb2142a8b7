// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// ExplainCommand returns the command explain, which needs no daemon.
func ExplainCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [KIND | WORD…]",
		Short: "Explain kinds of objects, reasons of drops, verdicts, states and findings",
		Long: `Explain a kind of objects, by a document with all of its fields that apply takes, or
words that status, counters, connections, events and doctor use: why packets are
dropped and what to do about it, what else is done with packets, the states of
connections and objects, and findings. Without a word it lists all of them.`,
		Example: "  llcli explain service > web.yaml\n  llcli explain no_backend\n  llcli explain",
		RunE: a.RunLocal(func(_ context.Context, args []string) error {
			if len(args) == 0 {
				return explainAll(a)
			}
			for i, name := range args {
				if i > 0 {
					a.Printf("\n")
				}
				if err := explain(a, name); err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: completeWords,
	}
}

func completeWords(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found := kinds.Words(prefix)
	for _, v := range vocabularies {
		for i := range v.words() {
			w := &v.words()[i]
			if strings.HasPrefix(w.name, prefix) && !slices.Contains(args, w.name) {
				found = append(found, cobra.CompletionWithDesc(w.name, w.meaning))
			}
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func explainAll(a *command.App) error {
	kindTable := a.Table(output.Column{Title: "KIND"}, output.Column{Title: "MEANING", Flexible: true})
	for i := range kinds.All {
		kindTable.Add(output.Cell{Text: kinds.All[i].Words[0]}, output.Cell{Text: kinds.All[i].Meaning})
	}
	kindTable.Flush()
	for _, v := range vocabularies {
		t := a.Table(output.Column{Title: v.title}, output.Column{Title: "MEANING", Flexible: true})
		for _, w := range v.words() {
			t.Add(output.Cell{Text: w.name}, output.Cell{Text: w.meaning})
		}
		a.Section(t)
	}
	return nil
}

// explain explains a word, in each of its senses.
func explain(a *command.App, name string) error {
	schema := kinds.SchemaOf(name)
	found := schema != ""
	if found {
		a.Printf("%s", schema)
	}
	for _, v := range vocabularies {
		w := v.find(name)
		if w == nil {
			continue
		}
		if found {
			a.Printf("\n")
		}
		found = true
		a.Printf("%s (%s)\n  %s\n", a.Painter().Paint(output.Bold, w.name), strings.ToLower(v.title), w.meaning)
		if w.advice != "" {
			a.Printf("  What to do: %s\n", w.advice)
		}
	}
	if isKind := kinds.SchemaOf(name) != ""; !isKind && explainField(a, name, found) {
		found = true
	}
	if !found {
		return command.Usagef("nothing named %q to explain%s; see llcli explain", name, nearWords(name))
	}
	return nil
}

// nearWords returns a hint that names the words most like name; for KIND.FIELD, the most similar
// kinds.
func nearWords(name string) string {
	kind, field, dotted := strings.Cut(name, ".")
	var words []string
	for i := range kinds.All {
		words = append(words, kinds.All[i].Words[0])
	}
	switch {
	case dotted && kinds.Find(kind) != nil:
		return "; llcli explain " + kinds.NounOf(kind) + " shows the fields"
	case dotted:
		if near := command.DidYouMean(kind, words); near != "" {
			return strings.Replace(near, "?", "."+field+"?", 1)
		}
	}
	for _, v := range vocabularies {
		for i := range v.words() {
			words = append(words, v.words()[i].name)
		}
	}
	return command.DidYouMean(name, words)
}

// explainValues explains the values of a field that the lines of its schema name.
func explainValues(a *command.App, lines []string) {
	for _, v := range []*vocabulary{&roleWords, &ruleWords, &backendWords} {
		for _, w := range v.words() {
			named := regexp.MustCompile(`\b` + regexp.QuoteMeta(w.name) + `\b`)
			if slices.ContainsFunc(lines, func(line string) bool { return named.MatchString(line[strings.IndexByte(line, ':'):]) }) {
				a.Printf("  %s: %s\n", a.Painter().Paint(output.Bold, w.name), w.meaning)
			}
		}
	}
}

// explainField shows the lines of the schemas that have a field: KIND.FIELD, or FIELD of any kind.
// more is set if other text precedes them.
func explainField(a *command.App, name string, more bool) (found bool) {
	only, field, dotted := strings.Cut(name, ".")
	if !dotted {
		only, field = "", name
	}
	field = field[strings.LastIndexByte(field, '.')+1:]
	for i := range kinds.All {
		k := &kinds.All[i]
		if dotted && kinds.NameOf(only) != k.Name {
			continue
		}
		shown := map[string]bool{}
		for line := range strings.Lines(k.Schema) {
			text := strings.TrimLeft(strings.TrimSpace(line), "-{ ")
			if strings.HasPrefix(text, field+":") && !shown[text] {
				if more && !found && len(shown) == 0 {
					a.Printf("\n")
				}
				shown[text] = true
				a.Printf("%s  %s\n", a.Painter().Paint(output.Bold, k.Name), text)
			}
		}
		if dotted {
			explainValues(a, slices.Sorted(maps.Keys(shown)))
		}
		found = found || len(shown) > 0
	}
	return found
}
