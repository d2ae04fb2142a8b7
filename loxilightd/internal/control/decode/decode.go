// SPDX-License-Identifier: Apache-2.0

// Package decode decodes JSON documents strictly, and limits how much a client's document can use
// up: memory, prefixes in tables, and space in error messages that quote it.
package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Strict decodes one JSON document into v, a pointer. Unlike encoding/json, it rejects fields that
// v does not have or that differ in case, duplicate fields, text that is not UTF-8, and null in a
// list; it reports the position of the error. A field whose value is null counts as absent. A
// [json.RawMessage] aliases data.
func Strict(data []byte, v any) *Error { return Within(data, v, nil) }

// Within is Strict with the memory limit in b.
func Within(data []byte, v any, b *Budget) *Error {
	d := decoder{data: data, budget: b}
	if err := d.value(reflect.ValueOf(v).Elem()); err != nil {
		return err
	}
	if d.space(); d.pos < len(data) {
		return d.syntax("unexpected text after the end of the document")
	}
	return nil
}

// Element returns the text of element i of a list that is a field of a malformed document; nil: the
// document has no such element before its first error. It does not retain the preceding elements,
// because a document may contain very many.
func Element(data []byte, list string, i int) json.RawMessage {
	var found json.RawMessage
	d := decoder{data: data}
	if d.peek() != '{' {
		return nil
	}
	_ = d.object(func(key string, _ *uint64) *Error { // an error ends the search
		if key != list || d.peek() != '[' {
			_, err := d.raw()
			return err
		}
		return d.members(']', func(at int) *Error {
			raw, err := d.raw()
			if at == i {
				found = raw
				return fieldErrorf("", "found")
			}
			return err
		})
	})
	return found
}

// maxNesting limits the nesting depth of a document.
const maxNesting = 64

type decoder struct {
	data   []byte
	pos    int
	depth  int
	budget *Budget // nil: no limit
}

// charge takes memory, in bytes, from the budget.
func (d *decoder) charge(bytes int) *Error {
	if d.budget.TakeMemory(bytes) {
		return nil
	}
	return &Error{Text: d.budget.TooMuch(), Full: true}
}

func (d *decoder) syntax(format string, args ...any) *Error {
	line := 1 + bytes.Count(d.data[:d.pos], []byte("\n"))
	return &Error{Text: fmt.Sprintf("no JSON: line %d, byte %d: %s", line, d.pos, fmt.Sprintf(format, args...)), Syntax: true}
}

func (d *decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

// peek returns the first byte of the next value; 0 at the end.
func (d *decoder) peek() byte {
	d.space()
	if d.pos == len(d.data) {
		return 0
	}
	return d.data[d.pos]
}

var (
	rawType         = reflect.TypeFor[json.RawMessage]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

// value decodes the next value into v.
func (d *decoder) value(v reflect.Value) *Error {
	t := v.Type()
	first := d.peek()
	if t == rawType {
		raw, err := d.raw()
		if err == nil {
			v.SetBytes(raw)
		}
		return err
	}
	if first == 'n' {
		return d.word("null")
	}
	if v.CanAddr() && reflect.PointerTo(t).Implements(unmarshalerType) {
		raw, err := d.raw()
		if err != nil {
			return err
		}
		if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw); err != nil {
			return elementError(err.Error())
		}
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		if err := d.charge(int(t.Elem().Size())); err != nil {
			return err
		}
		v.Set(reflect.New(t.Elem()))
		return d.value(v.Elem())
	case reflect.Struct:
		return d.object(func(key string, seen *uint64) *Error { return d.field(v, key, seen) })
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		return d.object(func(key string, _ *uint64) *Error { return d.entry(v, key) })
	case reflect.Slice:
		return d.slice(v)
	default:
		return d.scalar(v, first)
	}
}

// object decodes { "key": value, … }; each decodes the value.
func (d *decoder) object(each func(key string, seen *uint64) *Error) *Error {
	if d.peek() != '{' {
		return d.wrong("an object")
	}
	var seen uint64
	return d.members('}', func(int) *Error {
		if d.peek() != '"' {
			return d.syntax("want a name in quotes")
		}
		key, err := d.text()
		if err != nil {
			return err
		}
		if d.peek() != ':' {
			return d.syntax("want a colon after %q", Shorten(key))
		}
		d.pos++
		if err := each(key, &seen); err != nil {
			if err.Syntax {
				return err
			}
			return err.under(key)
		}
		return nil
	})
}

// members parses the elements between brackets, separated by commas.
func (d *decoder) members(end byte, each func(i int) *Error) *Error {
	if d.depth++; d.depth > maxNesting {
		return d.syntax("nested more than %d levels deep", maxNesting)
	}
	defer func() { d.depth-- }()
	d.pos++ // the opening bracket
	if d.peek() == end {
		d.pos++
		return nil
	}
	for i := 0; ; i++ {
		if err := each(i); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.pos++
		case end:
			d.pos++
			return nil
		case 0:
			return d.syntax("unexpected end: want a comma or %q", end)
		default:
			return d.syntax("want a comma or %q", end)
		}
	}
}

func (d *decoder) field(v reflect.Value, key string, seen *uint64) *Error {
	fields := fieldsOf(v.Type())
	f, ok := fields.byName[key]
	if !ok && len(fields.names) == 0 {
		return fieldErrorf("", "unknown field; want none")
	}
	if !ok {
		return fieldErrorf("", "unknown field; want one of %s", strings.Join(fields.names, ", "))
	}
	if *seen&(1<<f.number) != 0 {
		return fieldErrorf("", "given twice")
	}
	*seen |= 1 << f.number
	return d.value(v.FieldByIndex(f.index))
}

func (d *decoder) entry(v reflect.Value, key string) *Error {
	k := reflect.ValueOf(key)
	if v.MapIndex(k).IsValid() {
		return fieldErrorf("", "given twice")
	}
	value := reflect.New(v.Type().Elem()).Elem()
	if err := d.charge(EntryMemory + len(key)); err != nil {
		return err
	}
	if err := d.value(value); err != nil {
		return err
	}
	v.SetMapIndex(k, value)
	return nil
}

func (d *decoder) slice(v reflect.Value) *Error {
	if d.peek() != '[' {
		return d.wrong("a list")
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	return d.members(']', func(i int) *Error {
		step := func(err *Error) *Error {
			if err == nil || err.Syntax {
				return err
			}
			return err.under("[" + strconv.Itoa(i) + "]")
		}
		if d.peek() == 'n' {
			return step(fieldErrorf("", "null in a list"))
		}
		if v.Len() == v.Cap() {
			more := max(4, v.Len())
			if err := d.charge(more * int(v.Type().Elem().Size())); err != nil {
				return step(err)
			}
			v.Grow(more)
		}
		v.SetLen(i + 1)
		return step(d.value(v.Index(i)))
	})
}

func (d *decoder) scalar(v reflect.Value, first byte) *Error {
	switch kind := v.Kind(); {
	case kind == reflect.String && first == '"':
		s, err := d.text()
		if err != nil {
			return err
		}
		v.SetString(s)
		return d.charge(len(s))
	case kind == reflect.String:
		return d.wrong("a string")
	case kind == reflect.Bool && first == 't':
		v.SetBool(true)
		return d.word("true")
	case kind == reflect.Bool && first == 'f':
		v.SetBool(false)
		return d.word("false")
	case kind == reflect.Bool:
		return d.wrong("true or false")
	case v.CanInt(), v.CanUint():
		return d.integer(v, first)
	}
	panic("decode: no decoder for " + v.Type().String())
}

func (d *decoder) integer(v reflect.Value, first byte) *Error {
	if first != '-' && (first < '0' || first > '9') {
		return d.wrong("a number")
	}
	raw, err := d.raw()
	if err != nil {
		return err
	}
	if v.CanInt() {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil || v.OverflowInt(n) {
			least := int64(-1) << (v.Type().Bits() - 1)
			return notWhole(raw, least, -(least + 1))
		}
		v.SetInt(n)
		return nil
	}
	n, perr := strconv.ParseUint(string(raw), 10, 64)
	if perr != nil || v.OverflowUint(n) {
		return notWhole(raw, 0, ^uint64(0)>>(64-v.Type().Bits()))
	}
	v.SetUint(n)
	return nil
}

// notWhole returns the error for a number that is not an integer between least and most.
func notWhole(raw json.RawMessage, least, most any) *Error {
	if bytes.ContainsAny(raw, ".eE") {
		return fieldErrorf("", "%s is not an integer", Shorten(string(raw)))
	}
	return fieldErrorf("", "%s is not between %d and %d", Shorten(string(raw)), least, most)
}

// wrong returns the error for a value of the wrong type.
func (d *decoder) wrong(want string) *Error {
	if d.peek() == 0 {
		return d.syntax("unexpected end: want %s", want)
	}
	raw, err := d.raw()
	if err != nil {
		return err
	}
	text, hint := Shorten(string(raw)), ""
	switch {
	case want == "a list" && raw[0] != '{' && text == string(raw):
		hint = ": write [" + text + "]"
	case want == "a number" || want == "true or false":
		if inner := bytes.Trim(raw, `"`); len(inner) == len(raw)-2 && json.Valid(inner) {
			hint = ": omit the quotes"
		}
	}
	return fieldErrorf("", "%s is not %s%s", text, want, hint)
}

// fields are the fields of a struct, keyed by their JSON names.
type fields struct {
	byName map[string]field
	names  []string
}

type field struct {
	number int
	index  []int
}

var fieldCache sync.Map // maps reflect.Type to *fields

func fieldsOf(t reflect.Type) *fields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(*fields)
	}
	f := &fields{byName: map[string]field{}}
	for _, sf := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // embedded, or not for JSON
		}
		f.byName[name] = field{len(f.names), sf.Index}
		f.names = append(f.names, name)
	}
	if len(f.names) > 64 {
		panic("decode: too many fields in " + t.String())
	}
	slices.Sort(f.names)
	fieldCache.Store(t, f)
	return f
}
