/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* answer_test.bpf.c - for tests only: answers the configured packets, and passes all others. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "clock.h"
#include "parse.h"
#include "reply_reject.h"

volatile const __u8 config_egress = 0;
volatile const __u16 config_too_big = 0; /* reported MTU; 0: refused for another reason */
volatile const __u16 config_port = 0;	 /* of the packets to answer; 0: all */
volatile const __u32 config_larger = 0;	 /* answer only packets of more bytes */

SEC("tc")
int ll_answer_test(struct __sk_buff *skb)
{
	struct pkt p = { .egress = config_egress };
	__u32 word = skb->tc_index;

	if (word) {
		skb->tc_index = 0;
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	parse_packet(skb, &p);
	p.skb = skb;
	if (!p.family || skb->len <= config_larger ||
	    (config_port && p.dport != bpf_htons(config_port)))
		return TC_ACT_UNSPEC;
	p.now_tick = clock_tick();
	p.refused = config_too_big ? DROP_TOO_BIG : DROP_NO_BACKEND;
	p.mtu_bytes = config_too_big;
	return refuse_or_finish(&p, LL_REFUSE);
}

char _license[] SEC("license") = "Dual BSD/GPL";
