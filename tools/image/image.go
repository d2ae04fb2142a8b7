// SPDX-License-Identifier: Apache-2.0

// Package image writes container images as archives that docker load, podman load and ctr images
// import can read, without using any of these programs. The same content always produces the same
// bytes. The package supports neither registries nor more than one layer.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// File is one entry of the image's file system.
type File struct {
	Path   string      // path in the image, without a leading slash; parent directories are added
	Mode   fs.FileMode // permissions; with fs.ModeDir, the entry is a directory
	Source string      // the file on this machine that contains the content
	Text   string      // the content, if there is no Source
	Link   string      // the target of a symbolic link
}

// Image is the contents and configuration of an image.
type Image struct {
	Tags       []string // repository:tag
	Files      []File   // all owned by user 0
	Entrypoint []string
	Command    []string
	User       string
	Labels     map[string]string
	Time       time.Time // modification time of all files and of the image
}

// config is the image's configuration as container runtimes read it.
type config struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       settings  `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
	History      []history `json:"history"`
}

type settings struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type history struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

// manifest describes the contents of the archive.
type manifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// WriteFile writes the archive to a file, as a whole or not at all.
func (i *Image) WriteFile(name, architecture string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".image-*")
	if err != nil {
		return err
	}
	err = i.write(f, architecture)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the earlier error is returned
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

func (i *Image) write(w io.Writer, architecture string) error {
	layer := new(bytes.Buffer)
	if err := i.layer(layer); err != nil {
		return err
	}
	id := sum(layer.Bytes())
	text, err := json.Marshal(config{
		Created: i.Time.UTC(), Architecture: architecture, OS: "linux",
		Config: settings{
			User: i.User, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: i.Entrypoint, Cmd: i.Command, WorkingDir: "/", Labels: i.Labels,
		},
		RootFS:  rootFS{Type: "layers", DiffIDs: []string{"sha256:" + id}},
		History: []history{{Created: i.Time.UTC(), CreatedBy: "make image"}},
	})
	if err != nil {
		return err
	}
	m := manifest{Config: sum(text) + ".json", RepoTags: i.Tags, Layers: []string{id + "/layer.tar"}}
	about, err := json.Marshal([]manifest{m})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, part := range []struct {
		name string
		text []byte
	}{{m.Config, text}, {m.Layers[0], layer.Bytes()}, {"manifest.json", about}} {
		if err := i.entry(t, part.name, 0o644, part.text); err != nil {
			return err
		}
	}
	return t.Close()
}

// layer writes the file system.
func (i *Image) layer(w io.Writer) error {
	all := map[string]File{}
	for _, f := range i.Files {
		f.Path = path.Clean(f.Path)
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return fmt.Errorf("%q is no path in an image", f.Path)
		}
		all[f.Path] = f
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if _, there := all[dir]; !there {
				all[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	t := tar.NewWriter(w)
	for _, name := range names {
		if err := i.file(t, all[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return t.Close()
}

func (i *Image) file(t *tar.Writer, f File) error {
	switch {
	case f.Mode.IsDir():
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: f.Path + "/", Mode: mode(f.Mode), ModTime: i.Time})
	case f.Link != "":
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: f.Path, Linkname: f.Link, Mode: 0o777, ModTime: i.Time})
	case f.Source == "":
		return i.entry(t, f.Path, mode(f.Mode), []byte(f.Text))
	}
	text, err := os.ReadFile(f.Source)
	if err != nil {
		return err
	}
	return i.entry(t, f.Path, mode(f.Mode), text)
}

func (i *Image) entry(t *tar.Writer, name string, mode int64, text []byte) error {
	err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text)), ModTime: i.Time})
	if err == nil {
		_, err = t.Write(text)
	}
	return err
}

// mode converts a mode to tar's format.
func mode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

var notInTags = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// Tag makes a tag from a version: invalid characters become dashes.
func Tag(version string) string {
	tag := notInTags.ReplaceAllString(version, "-")
	if tag == "" || tag[0] == '.' || tag[0] == '-' {
		tag = "v" + tag
	}
	return tag[:min(len(tag), 128)]
}
