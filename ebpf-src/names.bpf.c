/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* names.bpf.c - the programs for names in network policies: ll_tc_names on the egress hook of each
 * Endpoint whose network has resolvers, and ll_names_sweep, which loxilightd runs.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "parse.h"
#include "nh_learn.h"
#include "names_packet.h"

/* After ll_tc_egress, so that it sees the packets that the Endpoint gets, with their addresses. It
 * changes no packet.
 */
SEC("tc")
int ll_tc_names(struct __sk_buff *skb)
{
	__u32 network = names_network(skb->ifindex);
	struct work *w;
	struct pkt p;

	if (!network || !names_may_come(skb))
		return TC_ACT_UNSPEC;
	w = work_get();
	__builtin_memset(&p, 0, sizeof(p));
	p.egress = 1;
	if (!w || parse_packet(skb, &p) != LL_NEXT || p.icmp_error)
		return TC_ACT_UNSPEC;
	p.skb = skb;
	domain_egress(&p);
	names_learn(&p, w, network);
	return TC_ACT_UNSPEC;
}

/* Deletes the addresses that expired more than skb->mark ticks ago. */
SEC("tc")
int ll_names_sweep(struct __sk_buff *skb)
{
	names_sweep(clock_tick(), skb->mark);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
