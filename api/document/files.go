// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// MaxFile is the largest file of objects, in bytes.
const MaxFile = 64 << 20

// Files returns the object files in a directory, sorted by name: files that have one of the
// [Extensions] and are not hidden.
func Files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if !isObjectFile(entry.Name()) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: is not a regular file: move it out of the directory", path)
		}
		files = append(files, path)
	}
	return files, nil
}

// Read reads a file of at most [MaxFile] bytes. title names the file in errors.
func Read(r io.Reader, title string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", title, err)
	}
	if len(text) > MaxFile {
		return nil, fmt.Errorf("%s: more than %d MiB: split it", title, MaxFile>>20)
	}
	return text, nil
}
