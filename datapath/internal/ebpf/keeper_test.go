// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/keeper"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/internal/testnet"
)

// keeperCPU is the fraction of a core that the keeper may use with largeNode ports, averaged over
// many rounds. The test measures it with keeperPorts, and extrapolates. About 0.01 is normal; a
// busy machine doubles that.
const (
	keeperPorts = 40
	largeNode   = 500
	keeperCPU   = 0.05
)

// TestKeeperCost measures the CPU time of a round with many ports, each of which has two links.
func TestKeeperCost(t *testing.T) {
	requireTCX(t)
	if testing.Short() || brief(0, 1) == 1 {
		t.Skip("attaches to many devices; an emulated machine is ten times slower")
	}
	n := newNetwork(t)
	devices := ""
	for i := range keeperPorts / 2 {
		devices += fmt.Sprintf("link add d%d type veth peer name d%d\n", 2*i, 2*i+1)
	}
	path := filepath.Join(t.TempDir(), "devices")
	n.ok(os.WriteFile(path, []byte(devices), 0o600))
	n.node.Run(t, "ip", "-batch", path)
	for i := range keeperPorts {
		device := fmt.Sprint("d", i)
		n.ok(n.d.Ports().Update(t.Context(), datapath.PortName(device), datapath.Port{Device: device}))
	}
	time.Sleep(1100 * time.Millisecond) // until all folders are old enough to be skipped
	n.d.keeper.KeepPins()
	const rounds = 200
	cost := func(do func()) time.Duration {
		before := cpuTime()
		for range rounds {
			do()
		}
		return (cpuTime() - before) / rounds * largeNode / keeperPorts
	}
	links := cost(func() { n.d.keeper.Detached() })
	pins := cost(n.d.keeper.KeepPins)
	share := float64(links+pins) / float64(keeper.Interval)
	t.Logf("%d ports: links %s, pins %s, %.2f %% of a core", largeNode, links, pins, 100*share)
	if share > keeperCPU {
		t.Errorf("the keeper takes %.1f %% of a core, want at most %.0f %%", 100*share, 100*keeperCPU)
	}
}

// TestForeignPinReplaced: if another program replaces one of our pins by a pin of its own map, ours
// is restored.
func TestForeignPinReplaced(t *testing.T) {
	n := newNetwork(t)
	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	n.ok(err)
	defer other.Close()
	path := filepath.Join(n.d.dir, kernel.MapLlCt4)
	n.ok(pin.Remove(path))
	n.ok(other.Pin(path))
	want, err := n.d.maps[kernel.MapLlCt4].Info()
	n.ok(err)
	testnet.Eventually(t, 5*time.Second, "the pin is of our map again", func() bool {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return false
		}
		defer m.Close()
		info, err := m.Info()
		n.ok(err)
		got, _ := info.ID()
		id, _ := want.ID()
		return got == id
	})
	testnet.Eventually(t, 5*time.Second, "the repair is counted", func() bool { return n.d.Telemetry().Repairs() > 0 })
	if found := n.d.keeper.Problems(); len(found) > 0 {
		t.Errorf("problems %q", found)
	}
}

// TestDetachedLinkReported: a link that another program detached is reported and signalled at once,
// so that it is attached again.
func TestDetachedLinkReported(t *testing.T) {
	requireTCX(t)
	n := newNetwork(t)
	n.attach()
	for len(n.d.Telemetry().Changed()) > 0 {
		<-n.d.Telemetry().Changed()
	}
	l, err := link.LoadPinnedLink(filepath.Join(n.d.ports.Folder(netnsHost, "in0"), "ingress"), nil)
	n.ok(err)
	defer l.Close()
	n.ok(l.Detach())
	if found := n.d.keeper.Problems(); len(found) != 1 {
		t.Errorf("problems %q, want one", found)
	}
	select {
	case <-n.d.Telemetry().Changed():
	case <-time.After(5 * time.Second):
		t.Fatal("nothing was signalled")
	}
	n.attach()
	if found := n.d.keeper.Problems(); len(found) != 0 {
		t.Errorf("problems %q, want none", found)
	}
}
