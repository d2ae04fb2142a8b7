// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiskIsRepaired: a repaired disk works and still has its files, even while another mount
// namespace keeps the failed file system mounted.
func TestDiskIsRepaired(t *testing.T) {
	dir := t.TempDir()
	d := NewDisk(t, dir)
	other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := other.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Fail()
	if err := os.WriteFile(file+"2", nil, 0o600); !errors.Is(err, unix.EIO) {
		t.Errorf("a write to the failed disk: %v", err)
	}
	d.Repair()
	if content, err := os.ReadFile(file); err != nil || string(content) != "content" {
		t.Errorf("file of before: %q, %v", content, err)
	}
	if err := os.WriteFile(file+"2", nil, 0o600); err != nil {
		t.Errorf("a write to the repaired disk: %v", err)
	}
}
