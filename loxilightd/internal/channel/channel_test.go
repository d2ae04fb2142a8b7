// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.nanomsg.org/mangos/v3"
	"go.nanomsg.org/mangos/v3/protocol/req"
	_ "go.nanomsg.org/mangos/v3/transport/ipc"
)

// runDir returns a run directory whose path is short enough for a Unix socket.
func runDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ll")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	return filepath.Join(dir, "run")
}

func echo(_ context.Context, _ Peer, request []byte) []byte {
	return append([]byte("echo "), request...)
}

// serve runs a channel until the test ends, and fails the test if it does not stop.
func serve(t *testing.T, o Options, h Handler) *Channel {
	t.Helper()
	if o.RunDir == "" {
		o.RunDir = runDir(t)
	}
	o.Log = slog.New(slog.DiscardHandler)
	lock, err := Lock(o.RunDir, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, h) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("serve did not stop")
		}
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func url(c *Channel) string { return "ipc://" + c.control.opts.path }

// request sends a request through unmodified mangos, as any client might.
func request(t *testing.T, url, body string) (string, error) {
	t.Helper()
	sock, err := req.NewSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sock.Close() }() // nothing to lose
	for _, o := range []string{mangos.OptionSendDeadline, mangos.OptionRecvDeadline} {
		if err := sock.SetOption(o, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := sock.DialOptions(url, map[string]any{mangos.OptionDialAsynch: true}); err != nil {
		return "", err
	}
	if err := sock.Send([]byte(body)); err != nil {
		return "", err
	}
	reply, err := sock.Recv()
	return string(reply), err
}

func TestStockMangos(t *testing.T) {
	c := serve(t, Options{}, echo)
	got, err := request(t, url(c), "hello")
	if err != nil || got != "echo hello" {
		t.Errorf("reply = %q, %v; want \"echo hello\"", got, err)
	}
}

// TestOtherImplementations uses the C clients that Debian packages.
func TestOtherImplementations(t *testing.T) {
	c := serve(t, Options{}, echo)
	for name, args := range map[string][]string{
		"nanocat": {"--req", "--connect", url(c), "--ascii", "-D", "hello", "--recv-timeout", "5"},
		"nngcat":  {"--req", "--dial", url(c), "--ascii", "-D", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("%s is not installed (.ci/setup test installs it)", name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "echo hello") {
				t.Errorf("%s: %v: %q, want \"echo hello\"", name, err, out)
			}
		})
	}
}
