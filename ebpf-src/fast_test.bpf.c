/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fast_test.bpf.c - for tests only: fastpath.h alone. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "parse.h"
#include "reply_reject.h"
#include "fastpath_skb.h"
#include "fastpath.h"

SEC("tc")
int ll_fast_test(struct __sk_buff *skb)
{
	int ret = fast_forward(skb);

	return ret == FAST_MISS || ret == FAST_UNSETTLED ? FAST_NOT : ret;
}

char _license[] SEC("license") = "Dual BSD/GPL";
