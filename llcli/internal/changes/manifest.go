// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
)

// stdinTitle is the file name of the standard input.
const stdinTitle = "standard input"

// manifest is one object of a file.
type manifest struct {
	*document.Document
	object api.Object
}

// ref names the object.
func (m *manifest) ref() api.ObjectRef {
	return api.ObjectRef{Kind: m.object.Kind, Name: m.object.Name}
}

// readManifests reads the objects in files, in all object files of directories, and on stdin if the
// name is "-". It reports every mistake that it finds, with its file and line.
func readManifests(stdin io.Reader, names []string) ([]manifest, error) {
	var all []manifest
	var errs []error
	for _, name := range names {
		files, err := expand(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, file := range files {
			found, err := readFile(stdin, file)
			all = append(all, found...)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	seen := make(map[api.ObjectRef]*manifest, len(all))
	for i := range all {
		m := &all[i]
		if first, twice := seen[m.ref()]; twice {
			errs = append(errs, fmt.Errorf("%s: %s is already defined at %s", m.At(), m.ref(), first.At()))
		}
		seen[m.ref()] = m
	}
	return all, errors.Join(errs...)
}

// expand returns the files that a name given with -f stands for, in order.
func expand(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	files, err := document.Files(name)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no %s file in this directory", name, strings.Join(document.Extensions, ", "))
	}
	return files, err
}

func readFile(stdin io.Reader, name string) ([]manifest, error) {
	r, title := stdin, stdinTitle
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read: nothing can be lost
		r, title = f, name
	}
	text, err := document.Read(r, title)
	if err != nil {
		return nil, err
	}
	return parseManifest(title, text)
}

// parseManifest returns the objects of one file, or all mistakes in it.
func parseManifest(title string, text []byte) ([]manifest, error) {
	list, err := document.Parse(title, text)
	if err != nil {
		return nil, err
	}
	var all []manifest
	var errs []error
	for _, d := range list {
		o, mistakes := d.Object()
		for _, mistake := range mistakes {
			errs = append(errs, mistake)
		}
		all = append(all, manifest{d, o})
	}
	return all, errors.Join(errs...)
}

// titles lists files for messages.
func titles(files []string) string {
	named := slices.Clone(files)
	for i, file := range named {
		if file == "-" {
			named[i] = stdinTitle
		}
	}
	return strings.Join(named, ", ")
}
