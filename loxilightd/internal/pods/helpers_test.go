// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// desired is an in-memory desired state. All objects are Ready unless a test sets otherwise.
type desired struct {
	mu       sync.Mutex
	objects  map[api.ObjectRef]api.Object
	revision uint64
	changes  int
	refuse   func(o api.Object) bool
	pending  string // message of objects that never become Ready
	unseen   string // an object that is Pending from the next VerifyEndpoint on
	network  string // status message of the network, if it is not Ready
	brief    int    // how many more calls of Status report that the object is Pending
}

func (d *desired) Change(puts []api.Object, deletes []api.ObjectRef) (uint64, *api.Error) {
	time.Sleep(time.Millisecond) // about as long as a write to disk takes
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range puts {
		if d.refuse != nil && d.refuse(o) {
			return 0, api.Errorf(api.ReasonConflict, "refused")
		}
	}
	d.changes++
	d.revision++
	for _, o := range puts {
		d.objects[api.ObjectRef{Kind: o.Kind, Name: o.Name}] = o
	}
	for _, r := range deletes {
		delete(d.objects, r)
	}
	return d.revision, nil
}

func (d *desired) Ready(ctx context.Context, _ uint64, refs []api.ObjectRef) *api.Error {
	d.mu.Lock()
	why, there := d.pending, false
	for _, r := range refs {
		_, ok := d.objects[r]
		there = there || ok
	}
	d.mu.Unlock()
	if why == "" || !there {
		return nil
	}
	<-ctx.Done()
	return api.Errorf(api.ReasonTimeout, "%s: %s", refs[0], why)
}

func (d *desired) Status(o api.ObjectRef) (api.Status, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.brief > 0 {
		d.brief--
		return api.Status{State: api.StatePending, Message: "being applied"}, true
	}
	if o.Kind == kindPodNetwork && d.network != "" {
		return api.Status{State: api.StateError, Message: d.network}, true
	}
	if o.Kind == kindPodNetwork {
		return api.Status{State: api.StateReady}, true
	}
	if _, ok := d.objects[o]; !ok {
		return api.Status{}, false
	}
	if d.pending != "" {
		return api.Status{State: api.StatePending, Message: d.pending}, true
	}
	return api.Status{State: api.StateReady}, true
}

func (d *desired) Owned(kind string) (list []api.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r, o := range d.objects {
		if r.Kind == kind {
			list = append(list, o)
		}
	}
	return list
}

func (d *desired) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// node is a Server with its environment, and can be restarted.
type node struct {
	*Server
	t       *testing.T
	dir     string
	boot    string
	links   *backends.FakePods
	desired *desired
	named   sync.Map // devices that other owners' objects name
	network atomic.Pointer[Network]
	stop    func()
	plugins []string // directories of IPAM plugins
}

var subnets = []netip.Prefix{netip.MustParsePrefix("10.201.3.0/24"), netip.MustParsePrefix("fd00:201:3::/64")}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), boot: "first", links: backends.NewFakePods(backends.FakeOptions{}),
		desired: &desired{objects: map[api.ObjectRef]api.Object{}}}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// start begins a run; stop ends the run as a crash would.
func (n *node) start() {
	n.t.Helper()
	networks := func() map[string][]netip.Prefix { return map[string][]netip.Prefix{"default": subnets} }
	addresses, err := ipam.Open(ipam.Options{Path: filepath.Join(n.dir, "addresses"), Networks: networks, Boot: n.boot})
	if err != nil {
		n.t.Fatal(err)
	}
	n.Server = New(Options{
		Links: n.links, Objects: n.desired, Addresses: addresses, StateDir: n.dir, Log: slog.New(slog.DiscardHandler),
		Network: func(name string) (Network, bool) {
			if network := n.network.Load(); network != nil {
				return *network, name == "default"
			}
			return Network{Bridge: "hsvlan110", Subnets: subnets}, name == "default"
		},
		Named: func(device string) bool { _, named := n.named.Load(device); return named },
		VerifyEndpoint: func(context.Context, string) error {
			n.desired.set(func() { n.desired.pending += n.desired.unseen; n.desired.unseen = "" })
			return nil
		},
	})
	n.usePlugins(n.plugins...)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { n.Run(ctx) })
	n.stop = sync.OnceFunc(func() { cancel(); run.Wait(); _ = addresses.Close() })
	select {
	case <-n.clean:
	case <-time.After(20 * time.Second):
		n.t.Fatal("not started in time")
	}
}

// usePlugins sets the directories that contain IPAM plugins.
func (n *node) usePlugins(dirs ...string) {
	n.plugins, n.Plugins, n.root = dirs, dirs, uint32(os.Getuid())
}

func (n *node) restart() { n.t.Helper(); n.stop(); n.start() }

// params returns the parameters of a command for a container; more contains further configuration
// fields.
func (n *node) params(command, container string, more map[string]any) *api.CNIParams {
	conf := map[string]any{"cniVersion": "1.1.0", "name": "pods", "type": "loxilight-cni"}
	for k, v := range more {
		conf[k] = v
	}
	text, err := json.Marshal(conf)
	if err != nil {
		n.t.Fatal(err)
	}
	netns := filepath.Join(n.dir, "netns-"+container)
	if command == api.CNIAdd {
		if err := os.WriteFile(netns, nil, 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	return &api.CNIParams{Command: command, ContainerID: container, Netns: netns, IfName: "eth0", Config: text,
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-" + container}
}

func (n *node) add(container string, more map[string]any) (json.RawMessage, *api.Error) {
	return n.Handle(context.Background(), n.params(api.CNIAdd, container, more))
}

func (n *node) mustAdd(container string, more map[string]any) *result {
	n.t.Helper()
	text, err := n.add(container, more)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", container, err)
	}
	r := &result{}
	if err := json.Unmarshal(text, r); err != nil {
		n.t.Fatal(err)
	}
	return r
}

func (n *node) command(command, container string, more map[string]any) *api.Error {
	_, err := n.Handle(context.Background(), n.params(command, container, more))
	return err
}

// wantOnly fails the test unless all remaining resources belong to these containers.
func (n *node) wantOnly(containers ...string) {
	n.t.Helper()
	var got []string
	for name, l := range n.links.Links() {
		if !l.Open {
			n.t.Errorf("link %s is not open", name)
		}
		got = append(got, filepath.Base(l.Netns)[len("netns-"):])
	}
	check := func(what string, got []string) {
		n.t.Helper()
		slices.Sort(got)
		if !slices.Equal(got, containers) {
			n.t.Errorf("%s of %q, want %q", what, got, containers)
		}
	}
	slices.Sort(containers)
	check("links", got)
	got = nil
	for _, l := range n.Addresses.Leases() {
		got = append(got, l.ContainerID)
	}
	check("addresses", got)
	got = nil
	n.desired.set(func() {
		for r, o := range n.desired.objects {
			var spec struct{ ContainerID string }
			if r.Kind == kindEndpoint && json.Unmarshal(o.Spec, &spec) == nil {
				got = append(got, spec.ContainerID)
			}
		}
	})
	check("endpoints", got)
	got = nil
	for _, r := range n.all() {
		got = append(got, r.ContainerID)
	}
	check("the records", got)
	files, err := filepath.Glob(filepath.Join(n.dir, recordDir, "*.json"))
	if err != nil || len(files) != len(containers) {
		n.t.Errorf("files %q, %v; want %d", files, err, len(containers))
	}
}

var _ Objects = (*desired)(nil)
var _ datapath.PodLinks = (*backends.FakePods)(nil)

func names(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("c%03d", i))
	}
	return list
}
