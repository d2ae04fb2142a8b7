// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"log/slog"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/fastpath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
)

// The namespaces, as config_netns in the programs.
const (
	netnsHost   = hook.Host
	netnsSwitch = hook.Switch
)

// namespace is a network namespace in which the data plane works.
type namespace struct {
	*hook.Netns
	devices   *devices
	netfilter *fastpath.Gate
}

// renewSwitch closes the switch's namespace if its name no longer exists or refers to another
// namespace: an open handle would keep the old namespace alive. The programs are attached again
// when a new namespace exists.
func (d *DataPlane) renewSwitch() error {
	closed, err := d.closeSwitch()
	if closed {
		err = errors.Join(err, d.mirrors.Abandon(netnsSwitch))
		d.signal()
	}
	return err
}

// closeSwitch closes the switch's namespace if it was deleted, and reports whether it did.
func (d *DataPlane) closeSwitch() (bool, error) {
	// Locked so that no operation on ports uses the namespace after it is closed.
	d.ports.mu.Lock()
	defer d.ports.mu.Unlock()
	d.namespacesMu.Lock()
	z := d.namespaces[netnsSwitch]
	if z == nil || z.Current() {
		d.namespacesMu.Unlock()
		return false, nil
	}
	d.namespaces[netnsSwitch] = nil
	d.namespacesMu.Unlock()
	d.log.Warn("the network namespace of the switch was deleted", slog.String("namespace", z.Name))
	err := errors.Join(d.ports.abandon(netnsSwitch), z.Close())
	if z.devices != nil {
		err = errors.Join(err, z.devices.forget())
	}
	return true, err
}

func (z *namespace) Close() error {
	if z.devices != nil {
		z.devices.Close()
	}
	if z.netfilter != nil {
		z.netfilter.Close()
	}
	return z.Netns.Close()
}

// namespaceOf returns the id of the switch's namespace, or of the host's.
func (d *DataPlane) namespaceOf(inSwitch bool) uint8 {
	if inSwitch && d.config.SwitchNamespace != "" && d.config.SwitchNamespace != "host" {
		return netnsSwitch
	}
	return netnsHost
}

// attached reports whether the tc programs of a port are still attached.
func (t *port) attached() bool { return hook.AllAttached(t.hooks, t.ifindex) }
