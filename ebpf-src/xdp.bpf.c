/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* xdp.bpf.c - the XDP program, attached if it is configured: the fast path of fastpath.h. All other
 * frames pass to the program on the ingress hook.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "fastpath_xdp.h"
#include "fastpath.h"

/* Frames may consist of several buffers, since the MTU exceeds the size of one buffer. */
volatile const __u8 config_pieces = 0;

/* Reports whether a frame is in one buffer. */
static __always_inline int is_in_one(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 len = end - data;

	return !config_pieces || bpf_xdp_get_buff_len(ctx) == len;
}

SEC("xdp")
int ll_xdp(struct xdp_md *ctx)
{
	int ret = is_in_one(ctx) ? fast_forward(ctx) : FAST_NOT;

	if (ret >= 0)
		return ret;
	if (ret >= FAST_NOT)
		return XDP_PASS;
	count_drop_at(config_ifindex, -ret);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
