// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// entries reads an archive.
func entries(t *testing.T, archive []byte) (names []string, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %o %d:%d %s", h.Name, h.Mode, h.Uid, h.Gid, h.Linkname))
		content[h.Name] = string(text)
		if !h.ModTime.Equal(time.Unix(1234567890, 0)) {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	i := Image{
		Tags: []string{"a:1", "a:latest"}, Entrypoint: []string{"/usr/bin/program"}, Command: []string{"x"}, User: "65534",
		Labels: map[string]string{"one": "1", "two": "2"}, Time: time.Unix(1234567890, 0),
		Files: []File{
			{Path: "usr/bin/program", Mode: 0o755, Source: program},
			{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			{Path: "var/run", Link: "../run"},
			{Path: "etc/passwd", Mode: 0o644, Text: "root"},
		},
	}
	var archives [][]byte
	for n := range 2 {
		out := filepath.Join(dir, fmt.Sprint("out", n), "image.tar")
		if err := i.WriteFile(out, "amd64"); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, b)
		slices.Reverse(i.Files) // the order in the list does not matter
		if err := os.Chtimes(program, time.Now(), time.Unix(int64(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same content makes two archives")
	}
	_, parts := entries(t, archives[0])
	var about []manifest
	if err := json.Unmarshal([]byte(parts["manifest.json"]), &about); err != nil || len(about) != 1 {
		t.Fatalf("manifest %s: %v", parts["manifest.json"], err)
	}
	if got := strings.Join(about[0].RepoTags, " "); got != "a:1 a:latest" {
		t.Errorf("tags %s", got)
	}
	layer := parts[about[0].Layers[0]]
	var c config
	if err := json.Unmarshal([]byte(parts[about[0].Config]), &c); err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + sum([]byte(layer)); len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0] != want {
		t.Errorf("layers %s, want %s", c.RootFS.DiffIDs, want)
	}
	if c.Config.User != "65534" || c.Config.Labels["two"] != "2" || c.Config.Entrypoint[0] != "/usr/bin/program" || c.Architecture != "amd64" {
		t.Errorf("configuration %+v", c)
	}
	names, content := entries(t, []byte(layer))
	want := []string{
		"etc/ 755 0:0 ", "etc/passwd 644 0:0 ", "tmp/ 1777 0:0 ", "usr/ 755 0:0 ", "usr/bin/ 755 0:0 ",
		"usr/bin/program 755 0:0 ", "var/ 755 0:0 ", "var/run 777 0:0 ../run",
	}
	if !slices.Equal(names, want) {
		t.Errorf("layer\n%s\nwant\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
	if content["usr/bin/program"] != "content" || content["etc/passwd"] != "root" {
		t.Errorf("content %q", content)
	}
}

func TestNothingHalf(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []File{{Path: "a", Source: filepath.Join(dir, "missing")}, {Path: "../a"}, {Path: "/a"}, {Path: "."}} {
		i := Image{Files: []File{f}}
		if err := i.WriteFile(filepath.Join(dir, "image.tar"), "amd64"); err == nil {
			t.Errorf("%+v: no error", f)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTag(t *testing.T) {
	for version, want := range map[string]string{"0.4.0~rc1+git2": "0.4.0-rc1-git2", "v1.2-3-gabc-dirty": "v1.2-3-gabc-dirty", "": "v", "-x": "v-x"} {
		if got := Tag(version); got != want {
			t.Errorf("%q becomes %q, want %q", version, got, want)
		}
	}
}
