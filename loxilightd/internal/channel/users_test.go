// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// playClient requests the version and makes a change, and prints the results.
func playClient(dir string) error {
	c, err := client.New(client.Options{Socket: filepath.Join(dir, ControlSocket), Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // nothing is left to send
	_, read := c.Version(context.Background())
	_, write := c.Apply(context.Background(), api.ApplyParams{Objects: services(1, 1)})
	s, subscribe := c.Subscribe(context.Background())
	if subscribe == nil {
		s.Close()
	}
	for _, err := range []error{read, write, subscribe} {
		refused, isRefusal := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
			fmt.Println("ok")
		case errors.Is(err, client.ErrPermission):
			fmt.Println("permission:", err)
		case isRefusal:
			fmt.Println(refused.Reason())
		default:
			fmt.Println("other:", err)
		}
	}
	return nil
}

// TestUsers: the daemon checks the permissions of each user, whatever the file modes permit.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SETUID and CAP_CHOWN to be other users")
	}
	const reader, admin, other = 54321, 54322, 54323 // unassigned ids
	dir := filepath.Join(shared(t), "run")
	m := newMini()
	serve(t, Options{RunDir: dir, Group: strconv.Itoa(reader), AdminGroup: strconv.Itoa(admin)}, m.handle)
	for path, mode := range map[string]os.FileMode{"": 0o755, ControlSocket: 0o666, EventsSocket: 0o666} {
		if err := os.Chmod(filepath.Join(dir, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		gid    uint32
		groups []uint32
		want   string
	}{
		"other":                   {other, nil, "permission permission permission"},
		"other in other groups":   {other, []uint32{other, 54329}, "permission permission permission"},
		"reader by group":         {reader, nil, "ok denied ok"},
		"reader by another group": {other, []uint32{54329, reader}, "ok denied ok"},
		"admin by group":          {admin, nil, "ok ok ok"},
		"admin by another group":  {reader, []uint32{admin}, "ok ok ok"},
		"reader with many groups": {other, manyGroups(reader), "ok denied ok"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "client "+dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54320, Gid: test.gid, Groups: test.groups}})
			var got []string
			for range 3 {
				word, _, _ := strings.Cut(p.line(t), ":")
				got = append(got, word)
			}
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("read, change, subscribe = %s, want %s", s, test.want)
			}
			if _, err := newClient(t, dir).Version(t.Context()); err != nil {
				t.Errorf("root afterwards: %v", err)
			}
		})
	}
}

// manyGroups returns more groups than fit in the first buffer for SO_PEERGROUPS.
func manyGroups(last uint32) []uint32 {
	var groups []uint32
	for i := range uint32(100) {
		groups = append(groups, 60000+i)
	}
	return append(groups, last)
}

// TestFileModes checks that the file system denies access to other users.
func TestFileModes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SETUID to be another user")
	}
	dir := filepath.Join(shared(t), "run")
	serve(t, Options{RunDir: dir}, newMini().handle)
	for path, want := range map[string]os.FileMode{"": 0o750, ControlSocket: 0o660, EventsSocket: 0o660} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("mode of %q = %v, %v; want %v", path, info.Mode().Perm(), err, want)
		}
	}
	p := start(t, "client "+dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54320, Gid: 54323}})
	for range 3 {
		got := p.line(t)
		if !strings.HasPrefix(got, "permission: ") || !strings.Contains(got, "loxilight-admin") {
			t.Errorf("a user of neither group got %q, want permission and what to do", got)
		}
	}
}
