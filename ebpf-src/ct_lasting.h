/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_lasting.h - changes the flags of entries, and counts lasting connections: see ct_share.h. */
#pragma once

#include "ct_share.h"
#include "ct_table_at.h"

/* Change flags of an entry, which other CPUs may change too. Little-endian: the upper half of the
 * word is packet_count_high.
 */
_Static_assert(offsetof(struct ct_meta, flags) % 4 == 0 &&
		       offsetof(struct ct_meta, packet_count_high) ==
			       offsetof(struct ct_meta, flags) + 2,
	       "one word");

static __always_inline void ct_flags_set(struct ct_meta *meta, __u16 flags)
{
	__sync_fetch_and_or((__u32 *)&meta->flags, flags);
}

static __always_inline void ct_flags_clear(struct ct_meta *meta, __u16 flags)
{
	__sync_fetch_and_and((__u32 *)&meta->flags, ~(__u32)flags);
}

/* Mark an entry as lasting, or as not lasting. Return whether to count its connection for its client,
 * or not to count it any more: it is counted as long as the entry of the client is lasting.
 */
static __always_inline int ct_begins_lasting(struct ct_meta *meta)
{
	__u32 old = __sync_fetch_and_or((__u32 *)&meta->flags, CT_F_LASTING);

	return !(old & (CT_F_LASTING | CT_F_REPLY));
}

static __always_inline int ct_ends_lasting(struct ct_meta *meta)
{
	__u32 old;

	if (!(*(volatile __u16 *)&meta->flags & CT_F_LASTING))
		return 0;
	old = __sync_fetch_and_and((__u32 *)&meta->flags, ~CT_F_LASTING);
	return (old & (CT_F_LASTING | CT_F_REPLY)) == CT_F_LASTING;
}

/* Marks the entry at index as not lasting. A global function, so that the verifier walks it once. */
__noinline int ct_leave(__u32 six, __u32 index)
{
	__u32 zero = 0;
	struct shares *s = bpf_map_lookup_elem(&ll_shares, &zero);
	struct ct_meta *meta = ct_meta_at(six, index);
	struct addr client;

	if (!s || !meta || !ct_ends_lasting(meta))
		return 0;
	if (six) {
		struct ct6 *e = ct6_at(index);

		if (!e)
			return 0;
		client = e->key.saddr;
	} else {
		struct ct4 *e = ct4_at(index);

		if (!e)
			return 0;
		addr_from4(&client, e->key.saddr);
	}
	share_add(s, &client, six, -1);
	return 0;
}
