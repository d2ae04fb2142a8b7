/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_tcp_scale.h - reads the window scale option of a SYN. */
#pragma once

#include "ct.h"
#include "parse.h"

#define TCP_OPTIONS_MAX	 40 /* bytes */
#define TCP_OPTION_END	 0
#define TCP_OPTION_NOP	 1
#define TCP_OPTION_SCALE 3 /* RFC 7323, section 2.2 */
#define TCP_SCALE_MAX	 14

/* Returns the window scale that a SYN announces; -1: none. The TCP header of the SYN has header_len
 * bytes and is at off. A global function, so that the verifier walks it once.
 */
__noinline int tcp_scale_of(struct __sk_buff *skb, __u32 off, __u32 header_len)
{
	struct work *w = work_get();
	__u64 len = header_len - sizeof(struct tcphdr);

	if (!w || off > L4_OFF_MAX || len > TCP_OPTIONS_MAX)
		return -1;
	asm volatile("" : "+r"(len)); /* two comparisons: the verifier cannot use a merged one */
	if (len < 4 || bpf_skb_load_bytes(skb, off + sizeof(struct tcphdr), w->tcp_options, len))
		return -1;
	w->tcp_at = 0;
	for (int i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 at = *(volatile __u32 *)&w->tcp_at;
		const __u8 *option = &w->tcp_options[at & 63];

		if (at + 3 > len)
			return -1;
		if (option[0] == TCP_OPTION_SCALE)
			return option[2] > TCP_SCALE_MAX ? TCP_SCALE_MAX : option[2];
		if (option[0] == TCP_OPTION_END || (option[0] != TCP_OPTION_NOP && option[1] < 2))
			return -1;
		at += option[0] == TCP_OPTION_NOP ? 1 : option[1];
		*(volatile __u32 *)&w->tcp_at = at;
	}
	return -1;
}
