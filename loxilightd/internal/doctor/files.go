// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The group of the users who may read objects, and the group of those who may change them.
const (
	group      = "loxilight"
	adminGroup = "loxilight-admin"
)

func (x *examiner) checkConfig() {
	if errors.Is(x.ConfigErr, fs.ErrNotExist) {
		x.find("error", "config.missing", x.ConfigFile, words{
			what: "does not exist", why: "without it the instance is unknown: nothing else was checked",
			do: "specify another file with --config or llcli --instance, or create it",
		}, nil)
		return
	}
	if x.ConfigErr != nil {
		rest := "the rest of this report assumes the defaults of the instance"
		if x.Config == nil {
			rest = "nothing else was checked, because the path of the file does not name its instance"
		}
		x.find("error", "config.invalid", x.ConfigFile, words{
			what: x.ConfigErr.Error(),
			why:  "the daemon does not start with it (exit code 78), and a running daemon keeps its previous configuration; " + rest,
			do:   "correct the file, check it with loxilightd --check, then restart the daemon",
		}, nil)
	}
}

// entry is one of our files or directories, with its required mode.
type entry struct {
	path   string
	mode   fs.FileMode // the most permissive allowed mode
	shared bool        // belongs to the group loxilight, which needs all permissions of mode
	why    string
}

func (x *examiner) checkFiles() {
	x.checkGroups()
	for _, e := range x.entries() {
		x.checkEntry(e)
	}
}

// entries returns the files and directories of ours to check, directories before their contents.
func (x *examiner) entries() []entry {
	const (
		decides = "a user with write access controls forwarding"
		own     = "the desired state is the daemon's own: others must neither read nor change it"
		sockets = "it lets only root and the group loxilight use the daemon"
	)
	c := x.Config
	entries := []entry{
		{path: x.ConfigFile, mode: 0o755, why: "a user with write access decides what the daemon does as root"},
		{path: c.ObjectDir, mode: 0o755, why: decides},
		{path: c.StateDir, mode: 0o700, why: own},
		{path: filepath.Join(c.StateDir, "state.db"), mode: 0o700, why: own},
		{path: c.RunDir, mode: 0o750, shared: true, why: "it denies users outside the group loxilight access to the sockets"},
		{path: filepath.Join(c.RunDir, "control.sock"), mode: 0o660, shared: true, why: sockets},
		{path: filepath.Join(c.RunDir, "events.sock"), mode: 0o660, shared: true, why: sockets},
		{path: c.PinDir, mode: 0o700, why: "a user who can open a pin can detach programs, or change connections"},
	}
	if etc := filepath.Dir(x.ConfigFile); strings.HasPrefix(filepath.Base(etc), "loxilight") {
		entries = slices.Insert(entries, 0, entry{path: etc, mode: 0o755, why: "a user with write access can replace the configuration"})
	}
	files, err := os.ReadDir(c.ObjectDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.hidden(c.ObjectDir, err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".yaml") {
			entries = append(entries, entry{path: filepath.Join(c.ObjectDir, f.Name()), mode: 0o755, why: decides})
		}
	}
	return entries
}

func (x *examiner) checkEntry(e entry) {
	info, err := os.Stat(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return // reported by the check that needs it
	}
	if err != nil {
		x.hidden(e.path, err)
		return
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	if owner := int(stat.Uid); owner != 0 && owner != os.Geteuid() {
		x.findFile("error", "files.owner", e.path, info, words{
			what: fmt.Sprintf("belongs to the user %s, want root", userName(owner)),
			why:  e.why, do: "chown root " + e.path,
		}, func(path string) error { return os.Chown(path, 0, -1) })
	}
	mode := info.Mode().Perm()
	want, severity, why := mode, "warning", e.why
	excess := mode &^ e.mode
	if excess&writable != 0 && readOnly(e.path, info) {
		excess &^= writable
	}
	if excess&writable != 0 {
		severity = "error"
	}
	switch {
	case excess != 0:
		want = mode & e.mode
	case e.shared && mode&e.mode != e.mode:
		want, why = e.mode, membersCannot
	}
	if want != mode {
		x.findFile(severity, "files.mode", e.path, info, words{
			what: fmt.Sprintf("has mode %04o, want %04o", mode, want),
			why:  why, do: fmt.Sprintf("chmod %04o %s", want, e.path),
		}, func(path string) error { return os.Chmod(path, want) })
	}
	if gid := x.groupID(group); e.shared && gid >= 0 && int(stat.Gid) != gid {
		x.findFile("warning", "files.group", e.path, info, words{
			what: fmt.Sprintf("belongs to the group %s, want %s", groupName(int(stat.Gid)), group),
			why:  membersCannot, do: fmt.Sprintf("chgrp %s %s", group, e.path),
		}, func(path string) error { return os.Chown(path, -1, gid) })
	}
}

// writable are the mode bits that allow users other than the owner to write.
const writable = fs.FileMode(0o022)

// readOnly reports whether a file or directory, or the target of a symbolic link, is on a read-only
// mount, such as a Kubernetes volume from a ConfigMap. Files there cannot be written, whatever
// their modes. A socket always counts as writable.
func readOnly(path string, info fs.FileInfo) bool {
	var st unix.Statfs_t
	if !info.Mode().IsRegular() && !info.IsDir() || unix.Statfs(path, &st) != nil {
		return false
	}
	return st.Flags&unix.MS_RDONLY != 0 // ST_RDONLY has the same value
}

const membersCannot = "members of the group loxilight cannot connect to the daemon"

// findFile reports a fault that can be repaired by calling change. The repair applies to the file
// that was examined: if others can write to the directory, they may have replaced the file by a
// link.
func (x *examiner) findFile(severity, id, path string, judged fs.FileInfo, w words, change func(path string) error) {
	x.find(severity, id, path, w, func() (string, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close() // nothing was written
		info, err := f.Stat()
		if err != nil {
			return "", err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !os.SameFile(info, judged) || !ok || info.Mode().IsRegular() && stat.Nlink > 1 {
			return "", fmt.Errorf("%s is a link: repair its target by hand", path)
		}
		return w.do, change(fmt.Sprintf("/proc/self/fd/%d", fd))
	})
}

func (x *examiner) checkGroups() {
	for _, g := range []struct{ name, may string }{{group, "read"}, {adminGroup, "change"}} {
		if x.groupID(g.name) < 0 {
			x.find("note", "groups.missing", "group "+g.name, words{
				what: "the group does not exist",
				why:  "only root can use the daemon: no other user may " + g.may,
				do:   "groupadd --system " + g.name + ", then restart the daemon (the package does that)",
			}, nil)
		}
	}
	readers := x.members(group)
	for _, admin := range x.members(adminGroup) {
		if !slices.Contains(readers, admin) {
			x.find("warning", "groups.half", "user "+admin, words{
				what: "is in the group " + adminGroup + " and not in " + group,
				why:  "the directory of the sockets belongs to the group " + group + ": this user may change objects, but cannot reach the daemon",
				do:   "usermod -aG " + group + " " + admin,
			}, nil)
		}
	}
	x.checkSelf(readers)
}

// checkSelf warns a user that is neither root nor in the group.
func (x *examiner) checkSelf(readers []string) {
	me, err := user.Current()
	if os.Geteuid() == 0 || err != nil || slices.Contains(readers, me.Username) {
		return
	}
	x.find("warning", "groups.self", "user "+me.Username, words{
		what: "is neither root nor in the group " + group,
		why:  "this user cannot use the daemon, and sees only a part of this report",
		do:   "run llcli doctor as root; for llcli itself: usermod -aG " + group + " " + me.Username,
	}, nil)
}

// members returns the users in a group, according to the machine's files. It adds the users whose
// primary group it is, because /etc/group does not list them.
func (x *examiner) members(name string) (users []string) {
	text, _ := x.read("/etc/group")
	gid := ""
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 4 && f[0] == name {
			gid = f[2]
			users = append(users, strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' })...)
		}
	}
	text, _ = x.read("/etc/passwd")
	for line := range strings.Lines(text) {
		if f := strings.Split(line, ":"); gid != "" && len(f) >= 4 && f[3] == gid {
			users = append(users, f[0])
		}
	}
	return users
}

// groupID returns the id of a group, -1 if it does not exist.
func (x *examiner) groupID(name string) int {
	if x.Root != "" {
		text, _ := x.read("/etc/group")
		for line := range strings.Lines(text) {
			if f := strings.Split(line, ":"); len(f) >= 3 && f[0] == name {
				id, _ := strconv.Atoi(f[2]) // the file is valid
				return id
			}
		}
		return -1
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return -1
	}
	id, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return id
}

func groupName(id int) string {
	if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
		return g.Name
	}
	return strconv.Itoa(id)
}

func userName(id int) string {
	if u, err := user.LookupId(strconv.Itoa(id)); err == nil {
		return u.Username
	}
	return strconv.Itoa(id)
}
