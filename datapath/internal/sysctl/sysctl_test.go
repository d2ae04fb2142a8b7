// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"io/fs"
	"maps"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

const (
	forwarding = "net/ipv4/ip_forward"
	redirects  = "net/ipv4/conf/all/send_redirects"
)

// open opens the sysctls of a namespace.
func open(t *testing.T, ns *testnet.NS, names ...string) (f *Files) {
	t.Helper()
	ns.Do(t, func() (err error) {
		f, err = Open(names...)
		return err
	})
	t.Cleanup(f.Close)
	return f
}

// TestOtherNamespace: sysctls are read from the namespace in which they were opened, as they are now.
func TestOtherNamespace(t *testing.T) {
	testnet.RequireRoot(t)
	ns := testnet.New(t, "sysctl")
	ns.Sysctl(t, "net.ipv4.ip_forward", "0")
	ns.Sysctl(t, "net.ipv4.conf.all.send_redirects", "1")
	f := open(t, ns, forwarding, redirects)
	for _, value := range []string{"0", "1", "0"} {
		ns.Sysctl(t, "net.ipv4.ip_forward", value)
		want := map[string]string{forwarding: value, redirects: "1"}
		if got, err := f.Values(); err != nil || !maps.Equal(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	}
}

// TestMissing: a sysctl that does not exist is left out.
func TestMissing(t *testing.T) {
	testnet.RequireRoot(t)
	ns := testnet.New(t, "sysctl")
	ns.Sysctl(t, "net.ipv4.ip_forward", "0")
	f := open(t, ns, "net/ipv4/no_such_setting", forwarding)
	if got, err := f.Values(); err != nil || !maps.Equal(got, map[string]string{forwarding: "0"}) || f.Complete() {
		t.Errorf("got %v, %v, complete %v", got, err, f.Complete())
	}
	if f := open(t, ns, forwarding); !f.Complete() {
		t.Error("not complete, although the sysctl exists")
	}
}

// TestDeletedDevice: a sysctl of a device that no longer exists cannot be read any more.
func TestDeletedDevice(t *testing.T) {
	testnet.RequireRoot(t)
	ns := testnet.New(t, "sysctl")
	ns.Run(t, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
	f := open(t, ns, "net/ipv4/conf/d0/accept_local")
	if _, err := f.Values(); err != nil {
		t.Fatal(err)
	}
	ns.Run(t, "ip", "link", "del", "d0")
	if _, err := f.Values(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want an error that the file does not exist", err)
	}
}

// TestNamespaceEnds: open sysctls do not keep their namespace alive.
func TestNamespaceEnds(t *testing.T) {
	testnet.RequireRoot(t)
	var f *Files
	t.Run("in use", func(t *testing.T) {
		ns := testnet.New(t, "sysctl")
		ns.Do(t, func() (err error) {
			f, err = Open(forwarding)
			return err
		})
	})
	defer f.Close()
	testnet.Eventually(t, 10*time.Second, "the namespace has ended", func() bool {
		_, err := f.Values()
		return errors.Is(err, fs.ErrNotExist)
	})
}
