// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ext4Shutdown makes all further accesses to a file system fail with EIO, as on a removed disk.
const ext4Shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN

// Disk is a separate file system on a loop device.
type Disk struct {
	t                  T
	image, dir, folder string
	repairs            int
}

// NewDisk mounts an empty file system of 32 MiB on dir, which must exist.
func NewDisk(t T, dir string) *Disk {
	t.Helper()
	RequireRoot(t)
	folder, err := os.MkdirTemp("", "disk-")
	if err != nil {
		t.Fatalf("folder of a disk: %v", err)
	}
	d := &Disk{t: t, image: filepath.Join(folder, "image"), dir: dir, folder: folder}
	d.run("truncate", "--size=32M", d.image)
	d.run("mkfs.ext4", "-q", d.image)
	d.mount()
	t.Cleanup(func() {
		d.unmount()
		if err := os.RemoveAll(folder); err != nil {
			t.Logf("folder of a disk: %v", err)
		}
	})
	return d
}

// Fail makes each access that reaches the disk fail with an I/O error.
func (d *Disk) Fail() {
	d.t.Helper()
	root, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatalf("disk: %v", err)
	}
	defer root.Close() // it was only read
	if err := unix.IoctlSetPointerInt(int(root.Fd()), ext4Shutdown, 0); err != nil {
		d.t.Fatalf("shut the file system down: %v", err)
	}
}

// Repair makes the disk work again. None of its files may be open. It mounts a copy, since the
// mount namespace of another process, such as a parallel test, may keep the failed file system in
// use: the kernel would then mount the failed file system again.
func (d *Disk) Repair() {
	d.t.Helper()
	d.unmount()
	d.repairs++
	image := filepath.Join(d.folder, "image-"+strconv.Itoa(d.repairs))
	d.run("cp", "--sparse=always", d.image, image)
	d.image = image
	d.mount()
}

func (d *Disk) mount() {
	d.t.Helper()
	d.run("mount", "-o", "loop", d.image, d.dir)
}

func (d *Disk) unmount() {
	d.t.Helper()
	if err := unix.Unmount(d.dir, 0); err != nil {
		d.t.Fatalf("unmount %s: %v", d.dir, err)
	}
}

func (d *Disk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v %s", name, err, out)
	}
}
