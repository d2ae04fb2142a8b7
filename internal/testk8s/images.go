// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/loxilight/loxilight/tools/image"
)

// References of the images that every node has.
const (
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:test"
	Pause   = "registry.k8s.io/pause:test"
)

// applets are the shell commands that tests use in pods.
var applets = []string{"sh", "cat", "ls", "ip", "ping", "sleep", "env", "hostname"}

// baseFiles returns the files of an image with a shell.
func baseFiles() ([]image.File, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w (.ci/setup test installs it)", err)
	}
	base := []image.File{
		{Path: "bin/busybox", Mode: 0o755, Source: busybox},
		{Path: "etc/passwd", Mode: 0o644, Text: "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		{Path: "etc/group", Mode: 0o644, Text: "root:x:0:\n"},
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
	for _, a := range applets {
		base = append(base, image.File{Path: "bin/" + a, Link: "busybox"})
	}
	return base, nil
}

// writeImages writes the images into dir and returns their files.
func writeImages(dir string, p *Programs, corednsRef string) (files []string, err error) {
	base, err := baseFiles()
	if err != nil {
		return nil, err
	}
	program := func(name string) image.File {
		return image.File{Path: name, Mode: 0o755, Source: filepath.Join(p.Dir, name)}
	}
	for name, i := range map[string]image.Image{
		"pause":   {Tags: []string{Pause}, Files: base, Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"}},
		"agnhost": {Tags: []string{Agnhost}, Files: append(base[:len(base):len(base)], program("agnhost")), Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}},
		"coredns": {Tags: []string{corednsRef}, Files: []image.File{program("coredns")}, Entrypoint: []string{"/coredns"}},
	} {
		i.Time = time.Unix(0, 0)
		file := filepath.Join(dir, name+".tar")
		if err := i.WriteFile(file, runtime.GOARCH); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// corednsRef finds the image in the manifest.
func corednsRef(manifest string) string {
	for line := range strings.Lines(manifest) {
		if ref, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok {
			return ref
		}
	}
	return ""
}
