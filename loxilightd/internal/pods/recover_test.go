// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// TestStartClearsWhatWasNotFinished creates all possible leftovers of a daemon that was killed at
// some moment, along with an intact interface.
func TestStartClearsWhatWasNotFinished(t *testing.T) {
	n := newNode(t)
	n.mustAdd("good", nil)
	n.mustAdd("half", nil)
	r := n.pods[ownerOf(n.params("DEL", "half", nil))]
	r.Done = false
	if err := n.save(r); err != nil {
		t.Fatal(err)
	}
	if err := n.links.Make(t.Context(), &datapath.PodLink{Device: "hs9", Netns: "/x", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Addresses.Allocate(t.Context(), ipam.Request{Network: "default", Owner: ipam.Owner{ContainerID: "begun", IfName: "eth0"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.desired.Change([]api.Object{object(kindEndpoint, "stray", map[string]string{"containerID": "stray"})}, nil); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.wantOnly("good")
	if p := n.Problems(); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
	if r := n.mustAdd("next", nil); r.Interfaces[0].Name != "hs2" {
		t.Errorf("device %s, want the lowest that is free", r.Interfaces[0].Name)
	}
}

func TestObjectsAreFoundAgain(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	n.desired.set(func() { clear(n.desired.objects) })
	n.restart()
	n.wantOnly("c1")
}

func TestAfterBoot(t *testing.T) {
	n := newNode(t)
	for _, c := range names(50) {
		n.mustAdd(c, nil)
	}
	for name := range n.links.Links() {
		if err := n.links.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	n.boot = "second"
	n.restart()
	n.wantOnly()
}

func (n *node) enqueue(container string, more map[string]any) string {
	n.t.Helper()
	return n.enqueueFirst(container, more, math.MaxInt)
}

// enqueueFirst queues only the first bytes of a DEL.
func (n *node) enqueueFirst(container string, more map[string]any, size int) string {
	n.t.Helper()
	p := n.params(api.CNIDel, container, more)
	text, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(n.queueDir(), 0o700)
	}
	path := filepath.Join(n.queueDir(), sumOf(ownerOf(p))+".json")
	if err == nil {
		err = os.WriteFile(path+".new", text[:min(size, len(text))], 0o600)
	}
	if err == nil { // at once, since the daemon watches the queue
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return path
}

// TestQueueAtStart: commands that were queued while no daemon was running are carried out before
// the first ADD, and only for their own container.
func TestQueueAtStart(t *testing.T) {
	n := newNode(t)
	n.mustAdd("old", nil)
	n.mustAdd("new", nil) // the same pod, recreated
	n.stop()
	path := n.enqueue("old", nil)
	n.enqueue("never", nil)
	damaged := filepath.Join(n.queueDir(), "x.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.wantOnly("new")
	if _, err := os.Stat(path); err == nil {
		t.Error("it is queued still")
	}
	if _, err := os.Stat(damaged + ".damaged"); err != nil {
		t.Errorf("what cannot be read was not set aside: %v", err)
	}
}

// TestQueueBeforeAdd: a queued DEL of an interface does not affect the next interface with the same
// name.
func TestQueueBeforeAdd(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	path := n.enqueue("c1", nil)
	n.mustAdd("c1", nil)
	if _, err := os.Stat(path); err == nil {
		t.Error("it is queued still")
	}
	n.drain(t.Context())
	n.wantOnly("c1")
}

func TestQueueIsWatched(t *testing.T) {
	n := newNode(t)
	n.mustAdd("c1", nil)
	path := n.enqueue("c1", nil)
	testnet.Eventually(t, 20*time.Second, "it is queued no more", func() bool {
		_, err := os.Stat(path)
		return err != nil
	})
	n.wantOnly()
}
