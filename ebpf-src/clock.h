/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* clock.h - the current time in ticks. */
#pragma once

#include "maps.h"

/* Returns the current tick. The kernel advances its coarse clock once per jiffy, so each CPU reads
 * it once per jiffy: a read costs as much as a hash look-up, and more with the SRSO mitigation
 * (safe returns). If another program interrupts this one between the two stores, the tick remains
 * valid for at most that jiffy.
 */
static __always_inline __u32 clock_tick(void)
{
	__u32 which = RATE_CLOCK;
	struct rate_bucket *b = bpf_map_lookup_elem(&ll_rate, &which);
	__u64 jiffies = bpf_jiffies64();

	if (!b)
		return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
	if (b->used != jiffies) {
		b->tick = bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
		b->used = jiffies;
	}
	return b->tick;
}
