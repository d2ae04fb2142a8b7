// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/loxilight/loxilight/api"
)

const defaultStateDir = "/var/lib/loxilight"

func queueDir(cfg *config) string {
	dir := cfg.StateDir
	if dir == "" {
		dir = defaultStateDir
	}
	return filepath.Join(dir, api.CNIQueue)
}

// enqueue stores a DEL for the daemon to execute when it can. Once enqueue has returned without an
// error, the DEL survives a power failure. The file is named after the container and interface, so
// that it cannot be confused with the file for another container.
func enqueue(dir string, p *api.CNIParams) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(p.ContainerID + "/" + p.IfName))
	path := filepath.Join(dir, hex.EncodeToString(sum[:16])+".json")
	if isQueued(path, p) {
		return syncDir(dir)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // incomplete; the daemon removes leftovers
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// isQueued reports whether a complete copy of the same DEL is already queued. That copy stays,
// since a repeated DEL may contain less.
func isQueued(path string, p *api.CNIParams) bool {
	text, err := os.ReadFile(path)
	was := &api.CNIParams{}
	return err == nil && json.Unmarshal(text, was) == nil && was.ContainerID == p.ContainerID && was.IfName == p.IfName
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
