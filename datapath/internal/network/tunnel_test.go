// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestTunnelMTU: the MTU of a tunnel's device follows the path to its peers, which does not count
// as an external change; an MTU that another program sets does.
func TestTunnelMTU(t *testing.T) {
	testnet.RequireRoot(t)
	r := newRig(t, true)
	lan := testnet.New(t, "lan")
	testnet.Veth(t, testnet.Port{NS: r.host, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: lan, Name: "h"})
	tunnel := datapath.Tunnel{Device: "hstunnel", Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789}
	peer := datapath.Peer{Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Tunnel: "mesh"}
	r.n.tunnels.peer("two", &peer)
	ctx := context.Background()
	update := func() {
		t.Helper()
		if err := r.n.Tunnels().Update(ctx, "mesh", tunnel); err != nil {
			t.Fatal(err)
		}
		if intact, err := r.n.Tunnels().Verify(ctx, "mesh"); !intact || err != nil {
			t.Fatalf("just made: %v, %v", intact, err)
		}
	}
	update()
	r.host.Run(t, "ip", "link", "set", "eth0", "mtu", "1400")
	testnet.Eventually(t, 10*time.Second, "the way is seen to be another", func() bool {
		intact, err := r.n.Tunnels().Verify(ctx, "mesh")
		if !intact && !errors.Is(err, datapath.ErrOutdated) {
			t.Fatalf("another program's device counts as ours: %v, %v", intact, err)
		}
		return !intact
	})
	update()
	r.host.Run(t, "ip", "link", "set", "hstunnel", "mtu", "1000")
	if intact, err := r.n.Tunnels().Verify(ctx, "mesh"); intact || err != nil {
		t.Errorf("another program has set the MTU: %v, %v", intact, err)
	}
	update()

	// After a restart, peers are configured after the tunnel: the MTU for the paths to them stays
	// in the meantime.
	mtu := func() int {
		t.Helper()
		link, err := r.n.host.Link("hstunnel")
		if err != nil || link == nil {
			t.Fatal(link, err)
		}
		return link.Attrs().MTU
	}
	r.restart()
	update()
	if got := mtu(); got != 1350 {
		t.Errorf("while its Peers are not configured yet its MTU is %d, want 1350 as before", got)
	}
	r.n.tunnels.peer("two", &peer)
	r.host.Run(t, "ip", "link", "set", "eth0", "mtu", "1380")
	testnet.Eventually(t, 10*time.Second, "then it follows the way again", func() bool {
		intact, err := r.n.Tunnels().Verify(ctx, "mesh")
		return !intact && errors.Is(err, datapath.ErrOutdated)
	})
	update()
	if got := mtu(); got != 1330 {
		t.Errorf("its MTU is %d, want 1330", got)
	}
}

// TestTunnelMTUChangesUnderVerification: while a tunnel is verified, changes to a peer set the MTU
// of its device. That never counts as an external change.
func TestTunnelMTUChangesUnderVerification(t *testing.T) {
	testnet.RequireRoot(t)
	r := newRig(t, true)
	lan := testnet.New(t, "lan")
	testnet.Veth(t, testnet.Port{NS: r.host, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}}, testnet.Port{NS: lan, Name: "h"})
	ctx := t.Context()
	tunnel := datapath.Tunnel{Device: "hstunnel", Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789}
	if err := r.n.Tunnels().Update(ctx, "mesh", tunnel); err != nil {
		t.Fatal(err)
	}
	peers, ended := r.n.Peers(), make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			underlay := netip.MustParseAddr([]string{"192.0.2.2", "2001:db8::2"}[i%2]) // MTUs of 1450 and 1430
			err = peers.Update(ctx, "two", datapath.Peer{Underlay: []netip.Addr{underlay}, Tunnel: "mesh"})
		}
		ended <- err
	}()
	for i := 0; ; i++ {
		select {
		case err := <-ended:
			if err != nil || i < 100 {
				t.Errorf("%d verifications, %v", i, err)
			}
			return
		default:
		}
		if intact, err := r.n.Tunnels().Verify(ctx, "mesh"); !intact && !errors.Is(err, datapath.ErrOutdated) {
			t.Fatalf("verification %d: %v, %v", i, intact, err)
		}
	}
}

// TestTunnelConfiguredMTU: a tunnel has its configured MTU, but no more than fits the paths to its
// peers.
func TestTunnelConfiguredMTU(t *testing.T) {
	testnet.RequireRoot(t)
	r := newRig(t, true)
	lan := testnet.New(t, "lan")
	testnet.Veth(t, testnet.Port{NS: r.host, Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: lan, Name: "h"})
	has := func(configured int) (mtu int) {
		t.Helper()
		tunnel := datapath.Tunnel{Device: "hstunnel", Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789, MTU: configured}
		if err := r.n.Tunnels().Update(t.Context(), "mesh", tunnel); err != nil {
			t.Fatal(err)
		}
		r.host.Do(t, func() error {
			link, err := netlink.LinkByName("hstunnel")
			if err == nil {
				mtu = link.Attrs().MTU
			}
			return err
		})
		return mtu
	}
	if got := has(9000); got != 9000 {
		t.Errorf("without peers: MTU %d", got)
	}
	r.n.tunnels.peer("two", &datapath.Peer{Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Tunnel: "mesh"})
	if ok, err := r.n.Tunnels().Verify(t.Context(), "mesh"); ok || !errors.Is(err, datapath.ErrOutdated) {
		t.Errorf("with a peer it is as it was left: %v, %v", ok, err)
	}
	for mtu, want := range map[int]int{9000: 1450, 1451: 1450, 1450: 1450, 1449: 1449} {
		if got := has(mtu); got != want {
			t.Errorf("configured %d: MTU %d, want %d", mtu, got, want)
		}
	}
	r.host.Run(t, "ip", "link", "set", "eth0", "mtu", "9100")
	testnet.Eventually(t, 10*time.Second, "the way is seen to be wider", func() bool { return has(9000) == 9000 })
}

// TestTunnelTypeMTU: the MTU follows the overhead of the encapsulation.
func TestTunnelTypeMTU(t *testing.T) {
	testnet.RequireRoot(t)
	r := newRig(t, true)
	lan := testnet.New(t, "lan")
	testnet.Veth(t, testnet.Port{NS: r.host, Name: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}}, testnet.Port{NS: lan, Name: "h"})
	underlay := ""
	for _, tt := range []struct {
		underlay string
		tunnel   datapath.Tunnel
		mtu      int
	}{
		{"192.0.2.2", datapath.Tunnel{Type: datapath.TunnelGRE, VNI: 7}, 1500 - 28},
		{"192.0.2.2", datapath.Tunnel{Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789}, 1500 - 50},
		{"192.0.2.2", datapath.Tunnel{Type: datapath.TunnelGRE}, 1500 - 24},
		{"2001:db8::2", datapath.Tunnel{Type: datapath.TunnelGRE}, 1500 - 44},
		{"2001:db8::2", datapath.Tunnel{Type: datapath.TunnelGeneve, VNI: 7, Port: 6081}, 1500 - 70},
	} {
		if tt.underlay != underlay {
			r.n.tunnels.peer("two", &datapath.Peer{Underlay: []netip.Addr{netip.MustParseAddr(tt.underlay)}, Tunnel: "mesh"})
			underlay = tt.underlay
		}
		tt.tunnel.Device = "hstunnel"
		if err := r.n.Tunnels().Update(t.Context(), "mesh", tt.tunnel); err != nil {
			t.Fatal(err)
		}
		if intact, err := r.n.Tunnels().Verify(t.Context(), "mesh"); !intact || err != nil {
			t.Errorf("%s: just made: %v, %v", tt.tunnel.Type, intact, err)
		}
		link, err := r.n.host.Link("hstunnel")
		if err != nil || link == nil || link.Attrs().MTU != tt.mtu {
			t.Errorf("%s to %s: %+v, %v; want an MTU of %d", tt.tunnel.Type, tt.underlay, link, err, tt.mtu)
		}
	}
}
