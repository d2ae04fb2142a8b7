// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Samples implements [datapath.Telemetry].
func (t *telemetry) Samples(ctx context.Context, each func(datapath.Sample)) error {
	t.samples.Lock()
	defer t.samples.Unlock()
	r, err := ringbuf.NewReader(t.d.maps[kernel.MapLlSamples])
	if err != nil {
		return fmt.Errorf("read samples: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	defer r.Close()
	for {
		record, err := r.Read()
		if errors.Is(err, ringbuf.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read samples: %w", err)
		}
		if raw, ok := kernel.SampleOf(record.RawSample); ok {
			each(t.d.sample(&raw))
		}
	}
}

func (d *DataPlane) sample(raw *kernel.Sample) datapath.Sample {
	tuple := datapath.Tuple{
		Source:      netip.AddrPortFrom(raw.Saddr.Addr(), kernel.Swap16(raw.Sport)),
		Destination: netip.AddrPortFrom(raw.Daddr.Addr(), kernel.Swap16(raw.Dport)),
	}
	packet := datapath.Packet{
		Device:   d.deviceName(uint8(raw.Netns), int(raw.Ifindex)),
		Egress:   raw.Egress != 0,
		Protocol: datapath.Protocol(raw.Proto),
		Tuple:    tuple,
		Length:   int(raw.LenBytes),
	}
	rule, action, logged := d.firewall.Rule(raw.RuleId)
	var decision *datapath.Decision
	if logged {
		decision = &datapath.Decision{Rule: rule, Action: action, Packet: packet}
	}
	service := d.services.Name(raw.ServiceId)
	switch kernel.SampleType(raw.Type) {
	case kernel.SampleTypeSAMPLE_ALLOWED:
		return datapath.Sample{Decision: decision}
	case kernel.SampleTypeSAMPLE_OPENED:
		return datapath.Sample{Opened: true, Connection: &datapath.Connection{
			Protocol: datapath.Protocol(raw.Proto),
			Original: tuple,
			Service:  service,
		}}
	}
	reason := fmt.Sprint(raw.Reason)
	if int(raw.Reason) < len(d.reasons) {
		reason = d.reasons[raw.Reason]
	}
	return datapath.Sample{Drop: &datapath.Drop{Reason: reason, Packet: packet, Service: service, Rule: rule, NAT: d.nats.Name(uint16(raw.NatId)), Endpoint: d.endpointOf(uint8(raw.Netns), int(raw.Ifindex))}, Decision: decision}
}

func (d *DataPlane) deviceName(namespace uint8, index int) string {
	for _, z := range d.openNamespaces() {
		if z.ID == namespace {
			return z.devices.nameOf(index)
		}
	}
	return fmt.Sprint(index)
}
