// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (s *Server) reload(_ context.Context, c Caller, _ *none) (any, *api.Error) {
	result, err := s.ReloadFor(c)
	if err != nil {
		return nil, api.FromError(err)
	}
	return result, nil
}

// Reload reads the object files and replaces the objects of owner file by their content, as a
// whole or not at all. An error is an [*api.Error]; it names the file and line if it concerns a
// file. After an error the previous objects stay in force.
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
			return nil, objects[i].document.placed(err)
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

// placeRefusal adds the file and the line of the refused object.
func placeRefusal(err error, objects []fileObject) *api.Error {
	e := refusalError(err)
	r, ok := errors.AsType[*state.Refusal](err)
	if !ok {
		return e
	}
	// If an object occurs twice, report the second occurrence.
	for _, o := range slices.Backward(objects) {
		if o.object.Key == r.Key {
			return o.document.placed(e)
		}
	}
	return e
}

// fileObject is one object with its position.
type fileObject struct {
	object   *state.Object
	document *document
}

// readFiles reads all object files in dir, in the order of their names, with the budget b for all
// of them. A missing folder counts as empty.
func readFiles(dir string, b *budget) (files []string, objects []fileObject, err *api.Error) {
	files = []string{}
	if dir == "" {
		return files, nil, nil
	}
	entries, rerr := os.ReadDir(dir)
	if errors.Is(rerr, fs.ErrNotExist) {
		return files, nil, nil
	}
	if rerr != nil {
		return nil, nil, api.Errorf(api.ReasonUnavailable, "object files: %v", rerr)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".yaml") || strings.HasPrefix(name, ".") {
			continue
		}
		path := filepath.Join(dir, name)
		list, err := readFile(path, b)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, path)
		objects = append(objects, list...)
	}
	return files, objects, nil
}

// maxFile is the largest object file, in bytes.
const maxFile = 64 << 20

func readFile(path string, b *budget) ([]fileObject, *api.Error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, api.Errorf(api.ReasonUnavailable, "object files: %v", err)
	}
	if !info.Mode().IsRegular() {
		return nil, api.Errorf(api.ReasonInvalid, "%s: is no file: move it out of the folder", path)
	}
	if info.Size() > maxFile {
		return nil, api.Errorf(api.ReasonInvalid, "%s: has %d bytes, at most %d: split it", path, info.Size(), maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, api.Errorf(api.ReasonUnavailable, "object files: %v", err)
	}
	documents, aerr := splitYAML(path, text)
	if aerr != nil {
		return nil, aerr
	}
	objects := make([]fileObject, 0, len(documents))
	for _, d := range documents {
		o, err := d.parse(b)
		if err != nil {
			return nil, d.placed(err)
		}
		objects = append(objects, fileObject{o, d})
	}
	return objects, nil
}

// parse checks one document as an object of a file.
func (d *document) parse(b *budget) (*state.Object, *api.Error) {
	json, err := d.json()
	if err != nil {
		return nil, err
	}
	var o api.Object
	if ferr := decodeStrict(json, &o); ferr != nil {
		return nil, api.Errorf(api.ReasonInvalid, "%s", ferr.text).At(d.ref(), ferr.path)
	}
	if o.Owner != "" && o.Owner != api.OwnerFile {
		return nil, invalid("", "%q is refused: what stands in a file belongs to owner %s: leave it out", shorten(o.Owner), api.OwnerFile).At(d.ref(), "owner")
	}
	object, aerr := parseObject(&o, api.OwnerFile, 0, b)
	if aerr != nil && aerr.Data != nil && aerr.Data.Object == "" {
		// The error concerns kind or name, which are not in a list.
		field := strings.TrimPrefix(aerr.Data.Field, "objects[0].")
		text := strings.TrimPrefix(aerr.Message, aerr.Data.Field+": ")
		return nil, api.Errorf(aerr.Reason(), "%s", text).At(d.ref(), field)
	}
	return object, aerr
}

// placed returns err with the file and the line before its message.
func (d *document) placed(err *api.Error) *api.Error {
	field := ""
	if err.Data != nil {
		field = err.Data.Field
	}
	e := *err
	e.Message = fmt.Sprintf("%s:%d: %s", d.path, d.line(field), err.Message)
	return &e
}
