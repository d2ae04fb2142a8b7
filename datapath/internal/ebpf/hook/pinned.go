// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// pinnedLink is a program that is attached to a device by a pinned link.
type pinnedLink struct {
	link  link.Link
	index int    // of the device; 0: it is gone
	path  string // of the pin
}

func (p *pinnedLink) isPinned() bool {
	_, err := os.Lstat(p.path)
	return !errors.Is(err, os.ErrNotExist)
}

// openLink opens a link of an earlier run.
func openLink(path string) (p pinnedLink, err error) {
	p.path = path
	if p.link, err = link.LoadPinnedLink(path, nil); err != nil {
		return p, err
	}
	info, err := p.link.Info()
	if err != nil {
		return p, errors.Join(err, p.link.Close())
	}
	p.index = DeviceIndex(info)
	return p, nil
}

// DeviceIndex returns the ifindex of the device to which a link is attached, or 0 if the link is
// severed.
func DeviceIndex(info *link.Info) int {
	if x := info.TCX(); x != nil {
		return int(x.Ifindex)
	}
	if x := info.XDP(); x != nil {
		return int(x.Ifindex)
	}
	return 0
}

func (p *pinnedLink) update(program *ebpf.Program) error {
	if p.index == 0 {
		return nil // the device is gone: an Update of the port attaches again
	}
	if err := p.link.Update(program); !errors.Is(err, unix.ENOLINK) {
		return err
	}
	return nil
}

func (p *pinnedLink) Program() ebpf.ProgramID {
	info, err := p.link.Info()
	if err != nil {
		return 0
	}
	return info.Program
}

// inPlace reports whether the link is still attached, with or without its pin. It runs for all
// links a few times a second, so it reads no more than necessary.
func (p *pinnedLink) inPlace() bool {
	l, ok := p.link.(interface{ FD() int })
	if !ok || p.index == 0 {
		return false
	}
	var info linkInfo
	attr := infoRequest{fd: uint32(l.FD()), size: uint32(unsafe.Sizeof(info)), info: unsafe.Pointer(&info)}
	const objGetInfoByFD = 15 // BPF_OBJ_GET_INFO_BY_FD
	_, _, errno := unix.Syscall(unix.SYS_BPF, objGetInfoByFD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(p.link)
	return errno == 0 && int(info.ifindex) == p.index
}

// infoRequest is union bpf_attr of BPF_OBJ_GET_INFO_BY_FD.
type infoRequest struct {
	fd, size uint32
	info     unsafe.Pointer
}

// linkInfo is the beginning of struct bpf_link_info for tcx and XDP links.
type linkInfo struct {
	kind, id, program, _ uint32
	ifindex, _           uint32 // 0: the link is detached
}

func (p *pinnedLink) Attached() bool {
	_, err := os.Stat(p.path)
	return err == nil && p.inPlace()
}

func (p *pinnedLink) Repin() (bool, error) {
	if !p.inPlace() {
		return false, nil
	}
	if _, err := os.Stat(p.path); !errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err := p.link.Unpin(); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	err := p.link.Pin(p.path)
	return err == nil, err
}

func (p *pinnedLink) Detach() error {
	err := p.link.Unpin()
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, p.link.Close())
}

// Moved records that the pin is in another folder now. The library would otherwise keep the old
// path of the pin, which may belong to another link by the time the pin is removed.
func (p *pinnedLink) Moved(folder string) {
	p.path = filepath.Join(folder, filepath.Base(p.path))
	if known, err := link.LoadPinnedLink(p.path, nil); err == nil {
		p.link.Close() // only closes a file descriptor
		p.link = known
	}
}

func (p *pinnedLink) Close() { p.link.Close() } // only closes a file descriptor
