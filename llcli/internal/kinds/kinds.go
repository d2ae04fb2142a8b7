// SPDX-License-Identifier: Apache-2.0

// Package kinds contains what llcli knows about each kind of object: its words, the columns of its
// table, its fields as flags, an example with all of its fields, and the description of one object.
// It changes nothing: the daemon alone decides whether an object is valid.
package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Kind is everything that llcli knows about one kind of object.
type Kind struct {
	Name    string   // as in a document
	Words   []string // as on a command line; the first is the noun
	Meaning string   // in one line
	Plural  string   // in messages; empty: Name with an s
	Schema  string   // a document with every field, as apply takes it

	// The table of objects. Cells returns the values of Columns, or, if wide, of Columns and Wide.
	// Order compares rows for sorting; nil: by name. If Hits is set, the table shows how often each
	// object decided.
	Columns, Wide []output.Column
	Cells         func(o *api.Object, wide bool) []output.Cell
	Order         func(a, b *api.Object) int
	Hits          bool

	Spec func() any // returns an empty spec

	// What the daemon reports about an object: the counters, and the topics whose events name
	// objects of the kind, or their devices. nil: changes and status.
	Counters CounterSet
	Topics   []string

	// The flags of add and set. flags makes them; nil: each of fields is a flag, complete fills in
	// fields that add derives from the name and rejects missing fields, and adjust converts values
	// to the form of the API. complete and adjust may be nil.
	AddExample, SetExample string
	flags                  func() SpecFlags
	fields                 []specField
	complete               func(name string, spec map[string]any) error
	adjust                 func(a *command.App, spec map[string]any, given *pflag.FlagSet) error

	// The description of one object: the columns, and then details, which may be nil. If describe
	// is set, it writes the whole description.
	details  func(ctx context.Context, a *command.App, d command.Daemon, o *api.Object)
	describe func(ctx context.Context, a *command.App, d command.Daemon, o *api.Object)

	// hint describes an object in a few words, for completions; nil: by its columns.
	hint func(o *api.Object) string

	// expand returns the objects that the name of a Kubernetes pod or service stands for; nil: each
	// name is the name of one object.
	expand func(ctx context.Context, a *command.App, d command.Daemon, name string) ([]string, error)
}

// CounterSet defines which counters objects have.
type CounterSet uint8

// The sets of counters.
const (
	ConnectionCounters CounterSet = iota // packets, bytes, connections, drops
	DeviceCounters                       // the same without connections
	TunnelCounters                       // packets and bytes of each direction, drops
	CopyCounters                         // packets, bytes, drops without a reason
)

// CountersOf returns which counters objects of a kind have; for an empty kind, the counters of the
// node.
func CountersOf(kind string) CounterSet {
	if k := Find(kind); k != nil {
		return k.Counters
	}
	return ConnectionCounters
}

// TopicsOf returns the topics whose events name objects of a kind.
func TopicsOf(kind string) []string {
	if k := Find(kind); k != nil && k.Topics != nil {
		return k.Topics
	}
	return []string{api.TopicChanges, api.TopicStatus}
}

// SchemaOf returns the schema of the kind that a word means, or an empty string if the word is not
// a kind.
func SchemaOf(word string) string {
	if k := Find(word); k != nil {
		return k.Schema
	}
	return ""
}

// Expand returns the names of the objects of a kind that a name stands for.
func Expand(ctx context.Context, a *command.App, d command.Daemon, kind, name string) ([]string, error) {
	if k := Find(kind); k != nil && k.expand != nil {
		return k.expand(ctx, a, d, name)
	}
	return []string{name}, nil
}

// Flags returns new flags for the kind's fields.
func (k *Kind) Flags(a *command.App) SpecFlags {
	if k.flags != nil {
		return k.flags()
	}
	return &fieldFlags{app: a, kind: k}
}

// All are the kinds that this llcli knows.
var All = []Kind{
	bridgeKind,
	interfaceKind,
	tunnelKind,
	peerKind,
	routeKind,
	podNetworkKind,
	endpointKind,
	groupKind,
	natKind,
	firewallKind,
	serviceKind,
	mirrorKind,
	namespaceKind,
	entityKind,
	tierKind,
	policyKind,
}

// NeedKind checks that the first argument is a kind.
func NeedKind(usage string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		words := make([]string, len(All))
		for i := range All {
			words[i] = All[i].Words[0]
		}
		return command.Usagef("which kind of %s? %s", strings.Join(words, ", "), usage)
	}
}

// NameOf returns the kind that a word means, or the word itself: the daemon may know more kinds.
func NameOf(word string) string {
	if k := Find(word); k != nil {
		return k.Name
	}
	return word
}

// PluralOf returns the plural of the kind that a word means; other words are returned unchanged.
func PluralOf(word string) string {
	k := Find(word)
	if k == nil {
		return word
	}
	return cmp.Or(k.Plural, k.Name+"s")
}

// Find returns the kind that a word means, or nil if the word is unknown.
func Find(word string) *Kind {
	for i := range All {
		if word == All[i].Name {
			return &All[i]
		}
		for _, w := range All[i].Words {
			if strings.EqualFold(word, w) {
				return &All[i]
			}
		}
	}
	return nil
}

// Decode reads the fields of an object's spec and status that this llcli knows; fields that a newer
// daemon added are left out; fields that it changed appear as absent.
func Decode(o *api.Object, spec, status any) {
	if o.Spec != nil {
		_ = json.Unmarshal(o.Spec, spec)
	}
	if o.Status != nil {
		_ = json.Unmarshal(o.Status, status)
	}
}

// Article returns a kind with its indefinite article.
func Article(kind string) string {
	if strings.ContainsRune("AEIOU", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// NounOf returns the command-line word for a kind.
func NounOf(name string) string {
	if k := Find(name); k != nil {
		return k.Words[0]
	}
	return name
}
