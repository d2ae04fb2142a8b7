// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (s *Server) reload(_ context.Context, c Caller, _ *none) (any, *api.Error) {
	result, err := s.ReloadFor(c)
	if err != nil {
		return nil, api.FromError(err)
	}
	return result, nil
}

// Reload reads the object files and replaces the objects of owner "file" by their content, as a
// whole or not at all. An error is an [*api.Error]; it names the file and the line if it concerns a
// file. After an error, the previous objects stay in force.
func (s *Server) Reload() (*api.ReloadResult, error) { return s.ReloadFor(Caller{UID: os.Getuid()}) }

// ReloadFor is Reload on behalf of a caller.
func (s *Server) ReloadFor(c Caller) (*api.ReloadResult, error) {
	s.loading.Lock()
	defer s.loading.Unlock()
	result, err := s.takeFiles(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fileFail = err
		return nil, err
	}
	s.fileFail = nil
	return result, nil
}

func (s *Server) takeFiles(c Caller) (*api.ReloadResult, *api.Error) {
	files, objects, err := readFiles(s.ObjectDir, s.budgetOfFiles())
	if err != nil {
		return nil, err
	}
	put := make([]*state.Object, len(objects))
	for i := range objects {
		put[i] = objects[i].object
		if err := s.notReserved(put[i]); err != nil {
			return nil, placed(objects[i].document, err)
		}
	}
	committed, cerr := s.Store.Commit(&state.Transaction{
		Put: put, Owner: state.OwnerFile, Replace: &state.Scope{Owner: state.OwnerFile, Kinds: slices.Clone(api.Kinds)},
		By: state.Author{UID: c.UID, User: userName(c.UID), Method: api.MethodReload},
	})
	if cerr != nil {
		return nil, placeRefusal(cerr, objects)
	}
	result := &api.ReloadResult{ChangeResult: *s.changeResult(committed, 0), Files: files}
	return result, nil
}

// ReadFiles returns the object files in dir and the objects in them as [Server.Reload] would read
// them, but does not apply them.
func ReadFiles(dir string) (files []string, objects []*state.Object, err error) {
	files, read, refused := readFiles(dir, nil)
	if refused != nil {
		return nil, nil, refused
	}
	for _, o := range read {
		objects = append(objects, o.object)
	}
	return files, objects, nil
}

// placeRefusal adds the file and the line of the rejected object.
func placeRefusal(err error, objects []fileObject) *api.Error {
	e := refusalError(err)
	r, ok := errors.AsType[*state.Refusal](err)
	if !ok {
		return e
	}
	// If an object occurs twice, report the second occurrence.
	for _, o := range slices.Backward(objects) {
		if o.object.Key == r.Key {
			return placed(o.document, e)
		}
	}
	return e
}

// fileObject is one object, with its position in a file.
type fileObject struct {
	object   *state.Object
	document *document.Document
}

// readFiles reads all object files in dir, in the order of their names; the budget b applies to all
// of them together. A missing directory counts as empty.
func readFiles(dir string, b *decode.Budget) (files []string, objects []fileObject, err *api.Error) {
	if dir == "" {
		return []string{}, nil, nil
	}
	files, ferr := document.Files(dir)
	if errors.Is(ferr, fs.ErrNotExist) {
		return []string{}, nil, nil
	}
	if ferr != nil {
		return nil, nil, unread(ferr)
	}
	for _, path := range files {
		list, err := readFile(path, b)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, list...)
	}
	return append([]string{}, files...), objects, nil
}

func readFile(path string, b *decode.Budget) ([]fileObject, *api.Error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unread(err)
	}
	defer f.Close() // the file was only read, so nothing can be lost
	text, err := document.Read(f, path)
	if err != nil {
		return nil, unread(err)
	}
	documents, err := document.Parse(path, text)
	if err != nil {
		return nil, api.Errorf(api.ReasonInvalid, "%v", err)
	}
	objects := make([]fileObject, 0, len(documents))
	for _, d := range documents {
		o, err := parseDocument(d, b)
		if err != nil {
			return nil, err
		}
		objects = append(objects, fileObject{o, d})
	}
	return objects, nil
}

// unread returns the error for files that cannot be read, or that are not object files.
func unread(err error) *api.Error {
	reason := api.ReasonInvalid
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		reason = api.ReasonUnavailable
	}
	return api.Errorf(reason, "object files: %v", err)
}

// parseDocument checks one document as an object from a file.
func parseDocument(d *document.Document, b *decode.Budget) (*state.Object, *api.Error) {
	o, mistakes := d.Object()
	if len(mistakes) > 0 {
		first := mistakes[0]
		text := strings.TrimPrefix(first.Text, first.Field+": ")
		e := api.Errorf(api.ReasonInvalid, "%s", decode.ShortenTo(text, maxDetail)).At(decode.Shorten(first.Object), decode.ShortenTo(first.Field, maxDetail))
		e.Message = fmt.Sprintf("%s:%d: %s", first.File, first.Line, e.Message)
		return nil, e
	}
	if o.Owner != "" && o.Owner != api.OwnerFile {
		return nil, placed(d, invalid("", "%q is refused: objects in files belong to owner %s: omit owner", decode.Shorten(o.Owner), api.OwnerFile).At(decode.Shorten(d.Ref()), "owner"))
	}
	object, err := parseObject(&o, api.OwnerFile, 0, b)
	if err == nil {
		return object, nil
	}
	if err.Data != nil && err.Data.Object == "" {
		// The error concerns kind or name, which are not inside a list.
		field := strings.TrimPrefix(err.Data.Field, "objects[0].")
		text := strings.TrimPrefix(err.Message, err.Data.Field+": ")
		err = api.Errorf(err.Reason(), "%s", text).At(decode.Shorten(d.Ref()), field)
	}
	return nil, placed(d, err)
}

// maxDetail limits how much of a file an error quotes, in bytes.
const maxDetail = 500

// placed returns err with the file and the line before its message.
func placed(d *document.Document, err *api.Error) *api.Error {
	field := ""
	if err.Data != nil {
		field = err.Data.Field
	}
	e := *err
	e.Message = fmt.Sprintf("%s:%d: %s", d.File, d.Line(field), err.Message)
	return &e
}
