// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// form is the syntax of a flag's value, and how it is converted to its field.
type form uint8

const (
	formText   form = iota
	formWords       // a list of words; --add-FLAG and --remove-FLAG change single ones
	formItems       // a list of objects, each written as NAME,KEY=VALUE…; likewise
	formNumber      // a whole number
	formTruth       // true or false
	formTime        // a duration
	formPairs       // KEY=VALUE…
	formMeans       // a switch that gives the field one value
)

// specField is a field of a spec as a flag.
type specField struct {
	flag, path string // the path of the field, with dots: match.source
	form       form
	usage      string
	values     []string                    // that completion offers
	groups     bool                        // completion offers groups of addresses
	kind       string                      // completion offers the names of its objects
	means      any                         // formMeans
	item       func(string) (any, error)   // formItems: reads one
	key        func(map[string]any) string // formItems: the key of an item
}

// fieldFlags are the flags of a kind of which each is a field of the spec.
type fieldFlags struct {
	app    *app
	kind   *kind
	fields []specField
	// complete fills in fields that add derives from the name, and refuses missing fields; nil:
	// nothing to do.
	complete func(name string, spec map[string]any) error
	// adjust converts values of add and set to the form of the API; nil: nothing to do.
	adjust func(spec map[string]any, given *pflag.FlagSet) error
	flags  *pflag.FlagSet
}

func (f *fieldFlags) paths() []flagPath {
	paths := make([]flagPath, len(f.fields))
	for i, field := range f.fields {
		paths[i] = flagPath{field.flag, field.path}
	}
	return paths
}

func (f *fieldFlags) bind(cmd *cobra.Command) {
	f.flags = cmd.Flags()
	for i := range f.fields {
		field := &f.fields[i]
		field.bind(f.flags, field.flag, field.usage)
		names := []string{field.flag}
		if cmd.Name() == "set" && field.isList() {
			add, remove := "add-"+field.flag, "remove-"+field.flag
			field.bind(f.flags, add, "add this "+field.usage)
			f.flags.StringSlice(remove, nil, "take this `"+strings.ToUpper(field.flag)+"` out; may be repeated")
			names = append(names, add, remove)
		}
		complete := cobra.FixedCompletions(field.values, cobra.ShellCompDirectiveNoFileComp)
		switch {
		case field.path == "match.in" || field.path == "match.out" || field.path == "device" && field.form == formText:
			complete = f.app.completeDevices
		case field.groups:
			complete = f.app.completeGroups(strings.HasPrefix(field.path, "match."))
		case field.kind != "":
			complete = f.app.completeNames(field.kind)
		}
		for _, name := range names {
			if strings.HasPrefix(name, "remove-") {
				complete = f.completeItems(field)
			}
			must(cmd.RegisterFlagCompletionFunc(name, complete))
		}
	}
}

// completeItems offers the elements of a list of the object that set changes.
func (f *fieldFlags) completeItems(field *specField) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) (found []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		f.app.ask(cmd.Context(), func(ctx context.Context, d Daemon) error {
			object, err := f.app.object(ctx, d, f.kind.name, args[0])
			if err != nil {
				return err
			}
			var spec map[string]any
			decode(&object, &spec, &struct{}{})
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

// completeGroups offers the groups of addresses as rules refer to them, and local.
func (a *app) completeGroups(local bool) cobra.CompletionFunc {
	const head, word = "group:", "local"
	return func(cmd *cobra.Command, _ []string, prefix string) (found []string, _ cobra.ShellCompDirective) {
		name, isGroup := strings.CutPrefix(prefix, head)
		if !isGroup {
			name = "" // the beginning of the word itself
		}
		if isGroup || strings.HasPrefix(head, prefix) {
			for _, group := range a.names(cmd.Context(), api.KindAddressGroup, name, nil) {
				found = append(found, head+group)
			}
		}
		if local && strings.HasPrefix(word, prefix) {
			found = append(found, cobra.CompletionWithDesc(word, "the addresses of the node"))
		}
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
		hideDefault(flags, name)
	case formTruth, formMeans:
		flags.Bool(name, false, usage)
	case formPairs:
		flags.StringToString(name, nil, usage)
		hideDefault(flags, name)
	case formTime:
		flags.Duration(name, 0, usage)
		hideDefault(flags, name)
	}
}

// spec returns the spec of a new object from the flags.
func (f *fieldFlags) spec(name string) (any, error) {
	spec := map[string]any{}
	if err := f.merge(spec, f.flags); err != nil {
		return nil, err
	}
	if f.complete == nil {
		return spec, nil
	}
	return spec, f.complete(name, spec)
}

// merge puts the values of the given flags into a spec, and leaves the rest. An empty value
// removes a field.
func (f *fieldFlags) merge(spec map[string]any, given *pflag.FlagSet) error {
	set := map[string]string{} // flags by path
	for i := range f.fields {
		field := &f.fields[i]
		if given.Changed(field.flag) {
			value, err := field.value(given, field.flag)
			if err != nil {
				return err
			}
			if value != nil && set[field.path] != "" {
				return usagef("--%s and --%s do not go together: both set %s; give one of them", set[field.path], field.flag, field.path)
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
	if f.adjust == nil {
		return nil
	}
	return f.adjust(spec, given)
}

// value reads the flag called name; nil: it is empty.
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
			return nil, usagef("--%s %s: %v", name, text, err)
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

// edit adds and takes out the single elements that the flags name.
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
			return fmt.Errorf("--%s %s: it is not among them; there are %s", remove, key, orNone(list, f.keyOf))
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

// orNone lists the existing items, for a message.
func orNone(list []any, key func(any) string) string {
	const few = 10
	var names []string
	for i, item := range list {
		if i == few {
			names = append(names, "…")
			break
		}
		names = append(names, key(item))
	}
	return or(strings.Join(names, ", "), "none")
}

// listAt returns the elements of the list at a path. A single value needs no list.
func listAt(spec map[string]any, path []string) []any {
	switch value := find(spec, path).(type) {
	case []any:
		return value
	case nil:
		return nil
	default:
		return []any{value}
	}
}

// find returns the field at a path; nil: it does not exist.
func find(spec map[string]any, path []string) any {
	for _, name := range path[:len(path)-1] {
		inner, ok := spec[name].(map[string]any)
		if !ok {
			return nil
		}
		spec = inner
	}
	return spec[path[len(path)-1]]
}

// put sets the field at a path.
func put(spec map[string]any, path []string, value any) error {
	for _, name := range path[:len(path)-1] {
		if spec[name] == nil {
			spec[name] = map[string]any{}
		}
		inner, ok := spec[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not what this llcli knows; change it with llcli edit", name)
		}
		spec = inner
	}
	spec[path[len(path)-1]] = value
	return nil
}

// removePath removes the field at a path, and parents that become empty.
func removePath(spec map[string]any, path []string) {
	if len(path) > 1 {
		inner, ok := spec[path[0]].(map[string]any)
		if !ok {
			return
		}
		if removePath(inner, path[1:]); len(inner) > 0 {
			return
		}
	}
	delete(spec, path[0])
}

// itemOf reads NAME,KEY=VALUE,KEY… with these keys; a key without a value is true.
func itemOf(nameKey string, keys map[string]form) func(string) (any, error) {
	return func(text string) (any, error) {
		item := map[string]any{}
		for i, part := range strings.Split(text, ",") {
			key, value, hasValue := strings.Cut(part, "=")
			if i == 0 && !hasValue {
				key, value = nameKey, part
			}
			form, known := keys[key]
			if !known {
				return nil, fmt.Errorf("%q: want %s", part, strings.Join(sortedKeys(keys), ", "))
			}
			switch form {
			case formTruth:
				item[key] = !hasValue || value == "true"
			case formNumber:
				item[key] = json.Number(value)
			case formWords:
				item[key] = strings.Split(value, "+")
			default:
				item[key] = value
			}
			if form == formNumber && !isNumber(value) {
				return nil, fmt.Errorf("%s=%s: want a number", key, value)
			}
		}
		return item, nil
	}
}

func isNumber(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
}

func sortedKeys(keys map[string]form) []string {
	var list []string
	for key, form := range keys {
		if form != formTruth {
			key += "="
		}
		list = append(list, key)
	}
	slices.Sort(list)
	return list
}
