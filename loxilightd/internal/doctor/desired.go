// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/internal/listing"
	"github.com/loxilight/loxilight/loxilightd/internal/control"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// maxObjects limits how many objects are checked.
const maxObjects = 20_000

// desired is the desired state, from the daemon or from its store.
type desired struct {
	known   bool
	absent  bool            // no store exists
	objects []*state.Object // desired objects, with decoded values
	leases  []api.AddressLease
	serving map[string]map[string]string  // states of the backends of Services, as reported
	copies  map[string]api.MirrorCounters // of Mirrors, as reported
	peeked  *state.Peeked                 // desired state of a daemon that is not running
	err     error
}

// ask reads the desired state from a running daemon.
func (d *desired) ask(ctx context.Context, c *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, 5*callTimeout)
	defer cancel()
	for _, kind := range api.Kinds {
		params := api.ListParams{Kind: kind}
		for {
			var page api.ListResult
			if d.err = c.Call(ctx, api.MethodList, params, &page); d.err != nil {
				return
			}
			for i := range page.Items {
				d.take(&page.Items[i])
			}
			if params.Continue = page.Continue; params.Continue == "" || len(d.objects) > maxObjects {
				break
			}
		}
	}
	d.known = true
	d.err = d.askLeases(ctx, c)
}

// askLeases requests the pods' addresses with their owners.
func (d *desired) askLeases(ctx context.Context, c *client.Client) error {
	var params api.AddressesListParams
	for {
		var page api.AddressesListResult
		err := c.Call(ctx, api.MethodAddressesList, params, &page)
		if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeMethodNotFound {
			return nil // the daemon has an earlier version
		}
		if err != nil {
			return err
		}
		d.leases = append(d.leases, page.Items...)
		if params.Continue = page.Continue; params.Continue == "" || len(d.leases) > maxObjects {
			return nil
		}
	}
}

func (d *desired) take(o *api.Object) {
	value, err := control.Decode(o.Kind, o.Spec)
	if err != nil {
		return // the object comes from a different version; the daemon reports it
	}
	d.noteServing(o)
	d.noteCopies(o)
	d.objects = append(d.objects, &state.Object{
		Key: state.Key{Kind: o.Kind, Name: o.Name}, Owner: o.Owner, Labels: o.Labels, Spec: string(o.Spec), Value: value,
	})
}

// readStore reads the desired state of a daemon that is not running.
func (x *examiner) readStore() {
	if x.desired.known || x.daemon.status != nil || errors.Is(x.daemon.err, client.ErrPermission) {
		return
	}
	p, err := state.Peek(x.Config.StateDir, control.Decode)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.desired.known, x.desired.absent = true, true // nothing was configured yet
	case err != nil:
		x.hidden("desired state in "+x.Config.StateDir, err)
	case p.Damaged != nil && x.daemon.running():
		return // the store was written in the meantime, so the copy is unreliable
	default:
		x.desired = desired{known: p.Damaged == nil, objects: p.Objects, peeked: p}
	}
}

func (x *examiner) checkState() {
	if x.desired.err != nil {
		x.hidden("objects of the daemon", x.desired.err)
	}
	store := filepath.Join(x.Config.StateDir, "state.db")
	if x.desired.absent && len(x.plane.Ports) > 0 {
		x.desired.known = false
		x.find("error", "state.lost", store, words{
			what: "does not exist, although programs are attached",
			why:  "the next start takes state.db.copy, if it exists; without it the desired state is unknown: ten minutes later the programs are detached, unless the owners have applied their objects again",
			do:   "restore the file from a backup before the daemon starts; or start it, and apply the objects again (conf.d is read automatically)",
		}, nil)
	}
	if p := x.desired.peeked; p != nil {
		if p.Damaged != nil {
			x.find("error", "state.damaged", store, words{
				what: p.Damaged.Error(),
				why:  "the next start sets it aside and takes state.db.copy, or begins without objects if that does not exist; the data plane keeps its state for ten minutes, in which the owners must apply their later changes again",
				do:   "restore the file from a backup before the daemon starts; or start it, and apply the objects again (conf.d is read automatically)",
			}, nil)
		}
		for _, u := range p.Unreadable {
			x.find("warning", "state.unreadable", u.Key.String(), words{
				what: "is not understood by this version: " + u.Err.Error(),
				why:  "it is kept, and only what an earlier run applied is in force; a newer version wrote it",
				do:   "install the newer version again, or apply or delete the object",
			}, nil)
		}
	}
	aside, err := filepath.Glob(store + ".damaged-*")
	if err != nil {
		x.hidden(store, err)
	}
	for _, path := range aside {
		x.find("warning", "state.set_aside", path, words{
			what: "is a store that was damaged and set aside",
			why:  "the objects in it were lost, unless their owners applied them again",
			do:   "check with llcli export that no object is missing, then remove the file",
		}, nil)
	}
	x.checkObjectFiles()
}

// checkObjectFiles compares the object files with the objects that the daemon has read from them.
func (x *examiner) checkObjectFiles() {
	files, wanted, aerr := control.ReadFiles(x.Config.ObjectDir)
	if aerr != nil {
		x.find("error", "files.objects", x.Config.ObjectDir, words{
			what: aerr.Error(),
			why:  "object files are applied only if all of them are valid: until then, also after a restart, their previous objects stay in force",
			do:   "correct it, then run llcli reload",
		}, nil)
		return
	}
	if !x.desired.known {
		return
	}
	differ := differences(wanted, x.desired.objects)
	if len(differ) == 0 || x.daemon.status == nil {
		return // the daemon reads them at its next start
	}
	x.find("warning", "files.reload", x.Config.ObjectDir, words{
		what: fmt.Sprintf("differ from the objects of the daemon: %s (%d files)", listing.First(differ, 5), len(files)),
		why:  "a change of object files has no effect until they are read again",
		do:   "llcli reload",
	}, x.reload)
}

// differences returns the names of the objects from files (owner "file") that differ between the
// two lists.
func differences(wanted, configured []*state.Object) (names []string) {
	have := make(map[state.Key]*state.Object)
	for _, o := range configured {
		if o.Owner == state.OwnerFile {
			have[o.Key] = o
		}
	}
	for _, o := range wanted {
		is := have[o.Key]
		delete(have, o.Key)
		if is == nil || !sameJSON(is.Spec, o.Spec) {
			names = append(names, o.Key.String())
		}
	}
	for key := range have {
		names = append(names, key.String())
	}
	slices.Sort(names)
	return names
}

// sameJSON reports whether two JSON texts are equal except for white space.
func sameJSON(a, b string) bool {
	var x, y bytes.Buffer
	if json.Compact(&x, []byte(a)) != nil || json.Compact(&y, []byte(b)) != nil {
		return a == b
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

func (x *examiner) reload() (string, error) {
	c, err := client.New(client.Options{Socket: x.socket(), Timeout: 5 * callTimeout})
	if err != nil {
		return "", err
	}
	defer c.Close() // no unsent data is lost
	return "llcli reload", c.Change(x.ctx, api.MethodReload, "", 0, nil, nil)
}
