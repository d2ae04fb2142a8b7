// SPDX-License-Identifier: Apache-2.0

package telemetry

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
func (r *Reader) Samples(ctx context.Context, each func(datapath.Sample)) error {
	r.samples.Lock()
	defer r.samples.Unlock()
	records, err := ringbuf.NewReader(r.options.Maps[kernel.MapLlSamples])
	if err != nil {
		return fmt.Errorf("read samples: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { records.Close() })
	defer stop()
	defer records.Close()
	for {
		record, err := records.Read()
		if errors.Is(err, ringbuf.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read samples: %w", err)
		}
		if raw, ok := kernel.SampleOf(record.RawSample); ok {
			each(r.sample(&raw))
		}
	}
}

func (r *Reader) sample(raw *kernel.Sample) datapath.Sample {
	tuple := datapath.Tuple{
		Source:      netip.AddrPortFrom(raw.Saddr.Addr(), kernel.Swap16(raw.Sport)),
		Destination: netip.AddrPortFrom(raw.Daddr.Addr(), kernel.Swap16(raw.Dport)),
	}
	packet := datapath.Packet{
		Device:   r.options.DeviceName(uint8(raw.Netns), int(raw.Ifindex)),
		Egress:   raw.Egress != 0,
		Protocol: datapath.Protocol(raw.Proto),
		Tuple:    tuple,
		Length:   int(raw.LenBytes),
	}
	rule, action, logged := r.options.Firewall.Rule(raw.RuleId)
	var decision *datapath.Decision
	if logged {
		decision = &datapath.Decision{Rule: rule, Action: action, Packet: packet}
	}
	service := r.options.Services.Name(raw.ServiceId)
	decided, policies := r.options.Policies.Decisions(raw)
	switch kernel.SampleType(raw.Type) {
	case kernel.SampleTypeSAMPLE_ALLOWED:
		return datapath.Sample{Decision: decision}
	case kernel.SampleTypeSAMPLE_POLICY:
		return datapath.Sample{Policies: policies, Packet: &packet}
	case kernel.SampleTypeSAMPLE_OPENED:
		return datapath.Sample{Opened: true, Connection: &datapath.Connection{
			Protocol: datapath.Protocol(raw.Proto),
			Original: tuple,
			Service:  service,
		}}
	}
	reason := fmt.Sprint(raw.Reason)
	if int(raw.Reason) < len(r.options.Reasons) {
		reason = r.options.Reasons[raw.Reason]
	}
	drop := &datapath.Drop{
		Reason: reason, Packet: packet, Service: service, Rule: rule, NAT: r.options.NATs.Name(uint16(raw.NatId)),
		Endpoint: r.options.EndpointOf(uint8(raw.Netns), int(raw.Ifindex)),
	}
	if len(decided) > 0 {
		drop.Policy = &decided[0]
	}
	return datapath.Sample{Drop: drop, Decision: decision, Policies: policies, Packet: &packet}
}
