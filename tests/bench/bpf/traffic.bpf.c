/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* traffic.bpf.c - makes, replays and swallows the packets that are measured. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PORTS_LOG2 15 /* source ports of a source address, at most: 16384 to 49151 */
#define PORT_FIRST 16384

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

/* The form of the packets, and the next connection. Connections are visited in leaps, so that
 * neighbours in time are not neighbours in any table.
 */
struct flow {
	__u32 index;	    /* of the next connection */
	__u32 count;	    /* of connections */
	__u32 leap;	    /* less than count, no divisor in common with it */
	__u32 first_source; /* host order */
	__u32 first_target; /* host order */
	__u32 target_count; /* addresses that the connections are spread over */
	__u32 ip_csum;	    /* sum of the IP header without addresses */
	__u32 udp_csum; /* of pseudo-header, UDP header and payload, without addresses and source port */
	__u16 target_port; /* host order */
	__u16 len_bytes;   /* of the IP packet */
	__u32 ports_log2;  /* at most PORTS_LOG2: source ports of each source address */
	__u8 dmac[6];
	__u8 smac[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct flow);
	__uint(max_entries, 1);
} flows SEC(".maps");

/* The sink's counters, and whether it sends packets back. */
struct sink {
	__u64 packet_count;
	__u32 echo;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct sink);
	__uint(max_entries, 1);
} sinks SEC(".maps");

/* The program whose cost is measured. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} measured SEC(".maps");

static __always_inline __u32 sum32(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = sum32(sum);
	return ~sum32(sum);
}

/* Writes all headers of the next connection's packet: the node has rewritten the headers of the
 * previous one.
 */
static __always_inline void frame_write(struct frame *frame, struct flow *flow)
{
	__u32 index = flow->index, next = index + flow->leap;
	__u32 ports_log2 = flow->ports_log2 & 31;
	__be32 saddr = bpf_htonl(flow->first_source + (index >> ports_log2));
	__be32 daddr = bpf_htonl(flow->first_target + index % flow->target_count);
	__be16 sport = bpf_htons(PORT_FIRST + (index & ((1 << ports_log2) - 1)));

	flow->index = next >= flow->count ? next - flow->count : next;
	__builtin_memcpy(frame->eth.h_dest, flow->dmac, 6);
	__builtin_memcpy(frame->eth.h_source, flow->smac, 6);
	frame->eth.h_proto = bpf_htons(ETH_P_IP);
	frame->ip.version = 4;
	frame->ip.ihl = 5;
	frame->ip.tos = 0;
	frame->ip.tot_len = bpf_htons(flow->len_bytes);
	frame->ip.id = 0;
	frame->ip.frag_off = bpf_htons(0x4000); /* do not fragment */
	frame->ip.ttl = 64;
	frame->ip.protocol = IPPROTO_UDP;
	frame->ip.saddr = saddr;
	frame->ip.daddr = daddr;
	frame->ip.check = fold(sum32(flow->ip_csum + sum32(saddr) + sum32(daddr)));
	frame->udp.source = sport;
	frame->udp.dest = bpf_htons(flow->target_port);
	frame->udp.len = bpf_htons(flow->len_bytes - sizeof(struct iphdr));
	frame->udp.check = fold(sum32(flow->udp_csum + sum32(saddr) + sum32(daddr) + sport));
}

/* By BPF_PROG_RUN with live frames: every frame leaves through the device on which it is run. */
SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct flow *flow = bpf_map_lookup_elem(&flows, &zero);

	if (!flow || !flow->target_count || (void *)(frame + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	frame_write(frame, flow);
	return XDP_TX;
}

/* By BPF_PROG_RUN: the same packets, given to the measured program without a device. */
SEC("tc")
int replay(struct __sk_buff *skb)
{
	struct frame *frame = (void *)(long)skb->data;
	__u32 zero = 0;
	struct flow *flow = bpf_map_lookup_elem(&flows, &zero);

	if (!flow || !flow->target_count || (void *)(frame + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	frame_write(frame, flow);
	skb->tc_index = 0;
	bpf_tail_call(skb, &measured, 0);
	return TC_ACT_UNSPEC;
}

/* Does nothing: used to measure the overhead of measuring. */
SEC("tc")
int idle(struct __sk_buff *skb)
{
	return TC_ACT_UNSPEC;
}

/* On the ingress hook of the receivers: the measured UDP packets end here, or are
 * sent back with their addresses and ports exchanged, which keeps the checksums.
 */
SEC("tc")
int swallow(struct __sk_buff *skb)
{
	struct frame *frame = (void *)(long)skb->data;
	__u32 zero = 0;
	struct sink *sink = bpf_map_lookup_elem(&sinks, &zero);
	__u8 mac[6];
	__be32 addr;
	__be16 port;

	if (!sink || (void *)(frame + 1) > (void *)(long)skb->data_end ||
	    frame->eth.h_proto != bpf_htons(ETH_P_IP) || frame->ip.protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	sink->packet_count++;
	if (!sink->echo)
		return TC_ACT_SHOT;
	__builtin_memcpy(mac, frame->eth.h_dest, 6);
	__builtin_memcpy(frame->eth.h_dest, frame->eth.h_source, 6);
	__builtin_memcpy(frame->eth.h_source, mac, 6);
	addr = frame->ip.saddr;
	frame->ip.saddr = frame->ip.daddr;
	frame->ip.daddr = addr;
	port = frame->udp.source;
	frame->udp.source = frame->udp.dest;
	frame->udp.dest = port;
	return bpf_redirect(skb->ifindex, 0);
}

/* In XDP of a receiver on a wire: the same for frames without an skb, as frames that leave through a
 * NIC are. Frames to be sent back are passed up, to the program above.
 */
SEC("xdp")
int swallow_frame(struct xdp_md *ctx)
{
	struct frame *frame = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct sink *sink = bpf_map_lookup_elem(&sinks, &zero);

	if (!sink || sink->echo || (void *)(frame + 1) > (void *)(long)ctx->data_end ||
	    frame->eth.h_proto != bpf_htons(ETH_P_IP) || frame->ip.protocol != IPPROTO_UDP)
		return XDP_PASS;
	sink->packet_count++;
	return XDP_DROP;
}

/* Where all IPv4 packets of a port go, by the program below. */
struct way {
	__u32 ifindex; /* 0: the program leaves them alone */
	__u32 peer;    /* into the namespace that the device leads to */
	__u8 dmac[6];
	__u8 smac[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct way);
	__uint(max_entries, 1);
} ways SEC(".maps");

/* On the ingress hook of a port: redirects all packets to a fixed destination. No program that
 * forwards can do less.
 */
SEC("tc")
int bare(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	__u32 zero = 0;
	struct way *way = bpf_map_lookup_elem(&ways, &zero);

	if (!way || !way->ifindex || (void *)(eth + 1) > (void *)(long)skb->data_end ||
	    eth->h_proto != bpf_htons(ETH_P_IP))
		return TC_ACT_UNSPEC;
	__builtin_memcpy(eth->h_dest, way->dmac, 6);
	__builtin_memcpy(eth->h_source, way->smac, 6);
	return way->peer ? bpf_redirect_peer(way->ifindex, 0) : bpf_redirect(way->ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
