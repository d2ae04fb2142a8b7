// SPDX-License-Identifier: Apache-2.0

// Package bundle collects the data for a remote diagnosis of an instance of loxilightd into one
// archive without secrets. It queries the daemon if the daemon responds, and collects everything
// else without it; the archive's manifest lists missing parts. It changes nothing.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits for an archive.
const (
	maxPart     = 2 << 20  // bytes of one file in the archive
	maxTotal    = 32 << 20 // of all files, before compression
	partTimeout = 10 * time.Second
	timeout     = 4 * time.Minute // for all parts
	// ourTimes is how many times longer loxilightd may take: it has the kernel verify all
	// programs, which takes seconds on a slow machine.
	ourTimes = 6
)

// Options select what to collect, and how.
type Options struct {
	Instance   string
	Config     string // the daemon's configuration file
	Unit       string // the systemd unit
	Version    string // of llcli
	Anonymize  bool   // replace addresses and the host name
	Now        time.Time
	Root       string // prefix of the paths of the machine's files; empty: this machine
	RunDir     string // directories that are listed, with modes
	StateDir   string
	PinDir     string
	ObjectDir  string
	Loxilightd string // path of the program; empty: not found

	// Call calls the daemon; nil: it does not answer, and CallErr is the reason.
	Call    func(ctx context.Context, method string, params, result any) error
	CallErr error
	// PartTimeout bounds the time for one part; 0: 10 s. Runs of loxilightd may take six times as
	// long.
	PartTimeout time.Duration
	// Exec runs a program to completion and returns its exit code.
	Exec func(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error)
}

// Manifest describes the contents of an archive.
type Manifest struct {
	Created    time.Time `json:"created"`
	Instance   string    `json:"instance"`
	Version    string    `json:"version"` // of llcli
	Anonymized bool      `json:"anonymized"`
	Files      []File    `json:"files"`
	Missing    []Missing `json:"missing"`
	Redaction  []string  `json:"redaction"` // the kinds of redacted text, in words
}

// File is one file of an archive.
type File struct {
	Name   string `json:"name"`
	What   string `json:"what"`
	Bytes  int    `json:"bytes"`
	CutOff bool   `json:"cutOff,omitempty"` // it was longer
}

// Missing is something that could not be collected.
type Missing struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// part is a file to be collected.
type part struct {
	name, what string
	json       bool
	ours       bool // loxilightd is run for it
	get        func(ctx context.Context) ([]byte, error)
}

type writer struct {
	o        Options
	tar      *tar.Writer
	manifest *Manifest
	names    *anonymizer // nil: addresses stay
	total    int
}

// Write writes an archive to w, a gzipped tar, and returns its manifest. Missing parts are not an
// error.
func Write(ctx context.Context, w io.Writer, o Options) (*Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	o.PartTimeout = cmp.Or(o.PartTimeout, partTimeout)
	zip := gzip.NewWriter(w)
	b := &writer{o: o, tar: tar.NewWriter(zip), manifest: &Manifest{
		Created: o.Now.UTC(), Instance: o.Instance, Version: o.Version, Anonymized: o.Anonymize, Redaction: Rules,
		Files: []File{}, Missing: []Missing{},
	}}
	if o.Anonymize {
		host, _ := os.Hostname() // no name: nothing to hide
		b.names = newAnonymizer(host)
	}
	for _, p := range b.parts() {
		if err := b.add(ctx, p); err != nil {
			return nil, err
		}
	}
	b.missing("goroutines of the daemon", errors.New("they can only be requested by a signal that terminates the daemon"))
	text, err := json.MarshalIndent(b.manifest, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := b.write("manifest.json", b.anonymous(append(text, '\n'))); err != nil {
		return nil, err
	}
	return b.manifest, errors.Join(b.tar.Close(), zip.Close())
}

func (b *writer) missing(what string, why error) {
	b.manifest.Missing = append(b.manifest.Missing, Missing{what, redact(why.Error())})
}

// add collects a part and writes it. It returns only errors from writing the archive.
func (b *writer) add(ctx context.Context, p part) error {
	if ctx.Err() != nil || b.total >= maxTotal {
		b.missing(p.name, fmt.Errorf("the archive took too long, or is too large (%d MiB)", b.total>>20))
		return nil
	}
	limit := b.o.PartTimeout
	if p.ours {
		limit *= ourTimes
	}
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	text, err := p.get(bounded)
	cancel()
	if err != nil {
		b.missing(p.name+": "+p.what, err)
		if len(text) == 0 {
			return nil
		}
	}
	f := File{Name: p.name, What: p.what}
	if p.json {
		text = redactJSON(text)
	} else {
		text = cutOff(text, maxPart, &f)
		text = []byte(redact(string(text)))
	}
	text = cutOff(b.anonymous(text), maxPart, &f)
	f.Bytes = len(text)
	b.manifest.Files = append(b.manifest.Files, f)
	return b.write(p.name, text)
}

func (b *writer) anonymous(text []byte) []byte {
	if b.names == nil {
		return text
	}
	return []byte(b.names.text(string(text)))
}

// cutOff truncates text to at most most bytes, at a line boundary if possible.
func cutOff(text []byte, most int, f *File) []byte {
	if len(text) <= most {
		return text
	}
	f.CutOff = true
	text = text[:most]
	if at := bytes.LastIndexByte(text, '\n'); at > 0 {
		text = text[:at+1]
	}
	return text
}

func (b *writer) write(name string, text []byte) error {
	if !utf8.Valid(text) {
		text = []byte(strings.ToValidUTF8(string(text), "?"))
	}
	b.total += len(text)
	err := b.tar.WriteHeader(&tar.Header{Name: "loxilight/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.o.Now, Format: tar.FormatPAX})
	if err == nil {
		_, err = b.tar.Write(text)
	}
	return err
}
