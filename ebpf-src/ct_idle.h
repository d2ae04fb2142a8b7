/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_idle.h - when a connection has expired: its place, its tuple and its ports are free to others.
 * loxilightd removes such connections, and may do so earlier: see idle.go.
 */
#pragma once

#include <linux/in.h>
#include <linux/in6.h>

#include "ct.h"

/* Idle times of connections without a service, by protocol, as in struct ct_more. loxilightd sets them;
 * these are for tests.
 */
volatile const __u16 config_ct_idle[IDLE_MAX] = { 867, 35, 867, 7 };

/* Limits of the idle time of connections that are not CT_ESTABLISHED, in ticks. loxilightd sets
 * them; these are for tests.
 */
enum ct_limit {
	LIMIT_ONE_WAY,
	LIMIT_FIN,	   /* without a service */
	LIMIT_FIN_LEAST,   /* with a service: the least */
	LIMIT_FIN_SERVICE, /* and the most */
	LIMIT_MAX,
};

volatile const __u32 config_ct_limit[LIMIT_MAX] = { 895, 1789, 895, 26823 };

static __always_inline __u32 ct_idle_of(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return IDLE_TCP;
	case IPPROTO_SCTP:
		return IDLE_SCTP;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return IDLE_ECHO;
	}
	return IDLE_UDP;
}

/* Reports whether an entry is lasting and has expired. Its connection has if both entries have. */
static __always_inline int ct_has_expired(const struct ct_meta *meta, const struct ct_more *more,
					  __u32 now_tick)
{
	__u32 idle = (__u32)more->idle << CT_IDLE_SHIFT, most = ~0U;

	if (meta->state == CT_FIN && meta->flags & CT_F_SERVICE && idle &&
	    idle < config_ct_limit[LIMIT_FIN_LEAST])
		idle = config_ct_limit[LIMIT_FIN_LEAST];
	if (meta->state == CT_FIN)
		most = config_ct_limit[meta->flags & CT_F_SERVICE ? LIMIT_FIN_SERVICE : LIMIT_FIN];
	else if (meta->state != CT_ESTABLISHED)
		most = config_ct_limit[LIMIT_ONE_WAY];
	return idle && meta->flags & CT_F_LASTING &&
	       ticks_since(now_tick, meta->last_seen_tick) > (idle < most ? idle : most);
}
