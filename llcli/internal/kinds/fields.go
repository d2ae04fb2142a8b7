// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// form is the syntax of a flag's value, and how it is converted to its field.
type form uint8

const (
	formText   form = iota
	formWords       // a list of words; --add-FLAG and --remove-FLAG change individual words
	formItems       // a list of objects, each written as NAME,KEY=VALUE…; likewise
	formNumber      // a whole number
	formTruth       // true or false
	formTime        // a duration
	formPairs       // KEY=VALUE…
	formMeans       // a switch that gives the field one value
)

// specField is a field of a spec that a flag sets.
type specField struct {
	flag, path string // the path of the field, with dots: match.source
	form       form
	usage      string
	values     []string                    // that completion offers
	groups     bool                        // completion offers address groups
	kind       string                      // completion offers the names of objects of this kind
	means      any                         // formMeans
	item       func(string) (any, error)   // formItems: reads one
	key        func(map[string]any) string // formItems: the key of an item
}

// fieldFlags are the flags of a kind, each of which sets one field of the spec.
type fieldFlags struct {
	app   *command.App
	kind  *Kind
	flags *pflag.FlagSet
}

func (f *fieldFlags) Paths() []command.FlagPath {
	paths := make([]command.FlagPath, len(f.kind.fields))
	for i, field := range f.kind.fields {
		paths[i] = command.FlagPath{Flag: field.flag, Path: field.path}
	}
	return paths
}

func (f *fieldFlags) Bind(cmd *cobra.Command) {
	f.flags = cmd.Flags()
	for i := range f.kind.fields {
		field := &f.kind.fields[i]
		field.bind(f.flags, field.flag, field.usage)
		names := []string{field.flag}
		if cmd.Name() == "set" && field.isList() {
			add, remove := "add-"+field.flag, "remove-"+field.flag
			field.bind(f.flags, add, "add this "+field.usage)
			f.flags.StringSlice(remove, nil, "remove this `"+strings.ToUpper(field.flag)+"`; may be repeated")
			names = append(names, add, remove)
		}
		complete := cobra.FixedCompletions(field.values, cobra.ShellCompDirectiveNoFileComp)
		switch {
		case field.path == "match.in" || field.path == "match.out" || field.path == "to.device" || field.path == "device" && field.form == formText:
			complete = f.app.CompleteDevices
		case field.groups:
			complete = completeGroups(f.app, strings.HasPrefix(field.path, "match."))
		case field.kind != "":
			complete = CompleteNames(f.app, field.kind)
		}
		for _, name := range names {
			if strings.HasPrefix(name, "remove-") {
				complete = f.completeItems(field)
			}
			command.Must(cmd.RegisterFlagCompletionFunc(name, complete))
		}
	}
}

// completeItems offers the elements of a list in the object that the set command changes.
func (f *fieldFlags) completeItems(field *specField) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) (found []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		f.app.Ask(cmd.Context(), func(ctx context.Context, d command.Daemon) error {
			object, err := f.app.Object(ctx, d, f.kind.Name, args[0])
			if err != nil {
				return err
			}
			var spec map[string]any
			Decode(&object, &spec, &struct{}{})
			for _, item := range listAt(spec, strings.Split(field.path, ".")) {
				if key := field.keyOf(item); strings.HasPrefix(key, prefix) {
					found = append(found, key)
				}
			}
			return nil
		})
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func (f *specField) isList() bool { return f.form == formWords || f.form == formItems }

func (f *specField) bind(flags *pflag.FlagSet, name, usage string) {
	switch f.form {
	case formText:
		flags.String(name, "", usage)
	case formWords:
		flags.StringSlice(name, nil, usage)
	case formItems:
		flags.StringArray(name, nil, usage)
	case formNumber:
		flags.Int64(name, 0, usage)
		command.HideDefault(flags, name)
	case formTruth, formMeans:
		flags.Bool(name, false, usage)
	case formPairs:
		flags.StringToString(name, nil, usage)
		command.HideDefault(flags, name)
	case formTime:
		flags.Duration(name, 0, usage)
		command.HideDefault(flags, name)
	}
}

// Spec returns the spec of a new object from the flags.
func (f *fieldFlags) Spec(name string) (any, error) {
	spec := map[string]any{}
	if err := f.Merge(spec, f.flags); err != nil {
		return nil, err
	}
	if f.kind.complete == nil {
		return spec, nil
	}
	return spec, f.kind.complete(name, spec)
}

// Merge puts the values of the given flags into a spec, and leaves the rest unchanged. An empty
// value removes a field.
func (f *fieldFlags) Merge(spec map[string]any, given *pflag.FlagSet) error {
	set := map[string]string{} // flags by path
	for i := range f.kind.fields {
		field := &f.kind.fields[i]
		if given.Changed(field.flag) {
			value, err := field.value(given, field.flag)
			if err != nil {
				return err
			}
			if value != nil && set[field.path] != "" {
				return command.Usagef("--%s and --%s cannot be combined: both set %s", set[field.path], field.flag, field.path)
			}
			if value != nil {
				set[field.path] = field.flag
			}
			if value == nil {
				removePath(spec, strings.Split(field.path, "."))
			} else if err := put(spec, strings.Split(field.path, "."), value); err != nil {
				return err
			}
		}
		if field.isList() {
			if err := field.edit(spec, given); err != nil {
				return err
			}
		}
	}
	if f.kind.adjust == nil {
		return nil
	}
	return f.kind.adjust(f.app, spec, given)
}

// value reads the flag called name. It returns nil if the flag is empty.
func (f *specField) value(flags *pflag.FlagSet, name string) (value any, err error) {
	switch f.form {
	case formText:
		var word string
		if word, err = flags.GetString(name); err == nil {
			word, err = f.understood(name, word)
		}
		if word != "" {
			value = word
		}
	case formWords, formItems:
		var items []any
		if items, err = f.items(flags, name); len(items) > 0 {
			value = items
		}
	case formNumber:
		value, err = flags.GetInt64(name)
	case formTruth:
		value, err = flags.GetBool(name)
	case formTime:
		var d time.Duration
		if d, err = flags.GetDuration(name); d != 0 {
			value = api.Duration(d)
		}
	case formPairs:
		var pairs map[string]string
		if pairs, err = flags.GetStringToString(name); len(pairs) > 0 {
			value = pairs
		}
	case formMeans:
		var on bool
		if on, err = flags.GetBool(name); on {
			value = f.means
		}
	}
	return value, err
}

// items reads the elements of a list.
func (f *specField) items(flags *pflag.FlagSet, name string) (items []any, err error) {
	if f.form == formWords {
		words, err := flags.GetStringSlice(name)
		for _, w := range words {
			if w, err = f.understood(name, w); err != nil {
				return nil, err
			}
			if w != "" {
				items = append(items, w)
			}
		}
		return items, err
	}
	texts, err := flags.GetStringArray(name)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		item, err := f.item(text)
		if err != nil {
			return nil, command.Usagef("--%s %s: %v", name, text, err)
		}
		items = append(items, item)
	}
	return items, nil
}

// keyOf returns the key of an element of the list.
func (f *specField) keyOf(item any) string {
	if m, ok := item.(map[string]any); ok && f.key != nil {
		return f.key(m)
	}
	return fmt.Sprint(item)
}

// edit adds and removes the individual elements that the flags name.
func (f *specField) edit(spec map[string]any, given *pflag.FlagSet) error {
	add, remove := "add-"+f.flag, "remove-"+f.flag
	if !given.Changed(add) && !given.Changed(remove) {
		return nil
	}
	path := strings.Split(f.path, ".")
	list := slices.Clone(listAt(spec, path))
	at := func(key string) int {
		return slices.IndexFunc(list, func(item any) bool { return f.keyOf(item) == key })
	}
	gone, err := given.GetStringSlice(remove)
	if err != nil {
		return err
	}
	for _, key := range gone {
		i := at(key)
		if i < 0 {
			return fmt.Errorf("--%s %s: no such element; existing: %s", remove, key, orNone(list, f.keyOf))
		}
		list = slices.Delete(list, i, i+1)
	}
	fresh, err := f.items(given, add)
	if err != nil {
		return err
	}
	for _, item := range fresh {
		if i := at(f.keyOf(item)); i >= 0 {
			list[i] = item
			continue
		}
		list = append(list, item)
	}
	if len(list) == 0 {
		removePath(spec, path)
		return nil
	}
	return put(spec, path, list)
}

// SpecFlags are the flags that define a spec.
type SpecFlags interface {
	// Bind adds the flags to a command.
	Bind(cmd *cobra.Command)
	// Spec returns the whole spec of an object from its name and the flags.
	Spec(name string) (any, error)
	// Merge puts the values of the given flags into a spec.
	Merge(spec map[string]any, given *pflag.FlagSet) error
	// Paths returns the fields of the spec that the flags set.
	Paths() []command.FlagPath
}

// MergeFields puts the fields that are set in a part of a spec into the spec; nested objects are
// merged, other values are replaced.
func MergeFields(spec map[string]any, part any) error {
	raw, err := document.Marshal(part)
	if err != nil {
		return err
	}
	var said map[string]any
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&said); err != nil {
		return err
	}
	for name, value := range said {
		if value == nil {
			continue
		}
		inner, isMap := value.(map[string]any)
		before, wasMap := spec[name].(map[string]any)
		if !isMap || !wasMap {
			spec[name] = value
			continue
		}
		for key, v := range inner {
			if v != "" { // "": the type of a health check was not given
				before[key] = v
			}
		}
	}
	return nil
}
