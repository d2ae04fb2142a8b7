// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/observe"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/telemetry"
)

// nodeTelemetry implements [datapath.Telemetry]: the counters of the programs, and the state of the
// node and of its objects.
type nodeTelemetry struct {
	*telemetry.Reader
	*observe.Node
	d *DataPlane
}

func (d *DataPlane) newTelemetry() *nodeTelemetry {
	r := telemetry.New(telemetry.Options{
		Tables: d.tables, Maps: d.maps, Sizes: d.config.Tables, Reasons: d.reasons, Verdicts: d.verdicts,
		Sweeper: d.sweeper, Services: d.services, Firewall: d.firewall, NATs: d.nats, NextHops: d.nexthops, Policies: d.policies,
		DeviceName: d.deviceName, EndpointOf: d.ports.EndpointOf,
	})
	return &nodeTelemetry{r, observe.New(observe.Options{
		Ports: d.ports, Namespaces: d.namespaces, Attach: d.config.Attach, PortDrops: r.PortDrops, MirrorHooks: d.mirrorHooks,
		SourcePorts: d.snat.Count,
		Warnings: func() []string {
			return slices.Concat(d.keeper.Problems(), d.sweeper.Problems(), d.policies.Problems(), d.keptSizes)
		},
	}), d}
}

// deviceName returns the name of a device; if it is unknown, the index as text.
func (d *DataPlane) deviceName(netns uint8, index int) string {
	return cmp.Or(d.namespaces.DeviceName(netns, index), fmt.Sprint(index))
}

// IsIdle implements [datapath.Telemetry].
func (t *nodeTelemetry) IsIdle() bool { return t.d.isIdle() && !t.d.mirrors.AreAttached() }

// Repairs implements [datapath.Telemetry].
func (t *nodeTelemetry) Repairs() uint64 { return t.d.keeper.Repairs() }

// Changed implements [datapath.Telemetry].
func (t *nodeTelemetry) Changed() <-chan struct{} { return t.d.changed }
