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

#define TICKS(seconds)	 ((seconds) * 1000000000ULL >> TICK_SHIFT)
#define ONE_WAY_IDLE	 TICKS(120)
#define FIN_IDLE	 TICKS(240)
#define FIN_IDLE_LEAST	 TICKS(120) /* of a Service */
#define FIN_IDLE_SERVICE TICKS(3600)

/* Reports whether an entry is lasting and has expired. Its connection has if both entries have. */
static __always_inline int ct_has_expired(const struct ct_meta *meta, const struct ct_more *more,
					  __u32 now_tick)
{
	__u32 idle = (__u32)more->idle << CT_IDLE_SHIFT, most = ~0U;

	if (meta->state == CT_FIN && more->service_id && idle && idle < FIN_IDLE_LEAST)
		idle = FIN_IDLE_LEAST;
	if (meta->state == CT_FIN)
		most = more->service_id ? FIN_IDLE_SERVICE : FIN_IDLE;
	else if (meta->state != CT_ESTABLISHED)
		most = ONE_WAY_IDLE;
	return idle && meta->flags & CT_F_LASTING &&
	       ticks_since(now_tick, meta->last_seen_tick) > (idle < most ? idle : most);
}
