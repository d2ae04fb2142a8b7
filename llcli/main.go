// SPDX-License-Identifier: Apache-2.0

// Command llcli controls loxilightd, the switch, router, load balancer and
// firewall of this node.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/cli"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Run(ctx, command.Env{
		Args:     os.Args[1:],
		In:       os.Stdin,
		Out:      os.Stdout,
		Err:      os.Stderr,
		Getenv:   os.Getenv,
		Width:    width,
		Terminal: func() bool { return width() > 0 && isTerminal(os.Stdin) },
		Dial:     dial,
		Now:      time.Now,
		Edit:     edit,
		Program:  program,
		Exec:     run,
		Version:  version,
		Build:    build(),
	}))
}

func dial(ctx context.Context, url string, timeout time.Duration) (command.Daemon, error) {
	c, err := client.Dial(ctx, client.Options{Socket: url, Timeout: timeout})
	if err != nil {
		return nil, err // no client: a nil *client.Client would be a Daemon that is not nil
	}
	return daemon{c}, nil
}

// daemon is a client as llcli needs it.
type daemon struct{ *client.Client }

// Events implements [command.Daemon].
func (d daemon) Events(ctx context.Context, topics ...string) (command.Events, error) {
	s, err := d.Subscribe(ctx, topics...)
	if err != nil {
		return nil, err // no events: a nil subscription would be Events that are not nil
	}
	return s, nil
}

// edit runs the user's editor, which has the terminal to itself. The shell splits EDITOR into
// words, as for other programs: EDITOR="code --wait".
func edit(ctx context.Context, path string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"))
	for _, name := range []string{"sensible-editor", "editor", "vi", "nano"} {
		if _, err := exec.LookPath(name); editor == "" && err == nil {
			editor = name
		}
	}
	if editor == "" {
		return errors.New("no editor found; set $EDITOR")
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "llcli-edit", path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", editor, err)
	}
	return nil
}

// program finds loxilightd: beside llcli, in the package's directory, or in PATH.
func program() (string, error) {
	places := []string{"/usr/sbin/loxilightd"}
	if self, err := os.Executable(); err == nil {
		places = slices.Insert(places, 0, filepath.Join(filepath.Dir(self), "loxilightd"))
	}
	for _, path := range places {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	path, err := exec.LookPath("loxilightd")
	if err != nil {
		return "", command.ErrNoProgram
	}
	return path, nil
}

// run runs a program to completion.
func run(ctx context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() >= 0 {
		return e.ExitCode(), nil
	}
	return 0, err
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// width returns the number of columns if standard output is a terminal; otherwise 0.
func width() int {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 { // a terminal of unknown width
		return 80
	}
	return int(size.Col)
}

// build describes the build of this llcli, in the same form as the daemon's.
func build() string {
	text := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return text
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			text += " " + setting.Value[:min(12, len(setting.Value))]
		}
	}
	return text
}
