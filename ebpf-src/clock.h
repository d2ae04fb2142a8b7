/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* clock.h - the time in ticks. */
#pragma once

#include "maps.h"

/* The tick that it is now. The kernel moves its coarse clock once in a jiffy, and so is asked
 * once in a jiffy on each CPU: that costs as much as a look-up in a hash, and more where the
 * processor makes each return of a function safe (SRSO). A program that comes between the
 * two stores leaves a tick that holds no longer than the jiffy does.
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
