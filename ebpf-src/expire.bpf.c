/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* expire.bpf.c - deletes both directions of connections at once. loxilightd selects the
 * connections, writes them into ll_expire and runs this program, which checks their current state.
 * If each entry were deleted by its own system call, one direction would be missing for a while:
 * packets in the other direction would continue, and replies to them would open new connections.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "ct_conn.h"
#include "types_expire.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct expire);
	__uint(max_entries, EXPIRE_COUNT);
} ll_expire SEC(".maps");

/* The word of an entry that contains its state, for compare-and-swap. */
struct state_word {
	__u16 tcp_window;
	__u8 tcp_scale;
	__u8 state;
};
_Static_assert(offsetof(struct ct_meta, state) == offsetof(struct ct_meta, tcp_window) + 3 &&
		       offsetof(struct ct_meta, tcp_window) % 4 == 0,
	       "one word");

/* Changes the state of an entry from one value to another. Returns whether it did. */
static __always_inline int state_swap(struct ct_meta *meta, __u8 from, __u8 to)
{
	__u32 *word = (__u32 *)&meta->tcp_window;

	for (int i = 0; i < 4; i++) { /* the window in the same word may change concurrently */
		__u32 old = *(volatile __u32 *)word, new;

		if (old >> 24 != from)
			return 0;
		new = (old & 0xffffff) | (__u32)to << 24;
		if (__sync_val_compare_and_swap(word, old, new) == old)
			return 1;
	}
	return 0;
}

static __always_inline __u32 idle_ticks(const struct ct_meta *meta, __u32 now_tick)
{
	__s32 ticks = now_tick - *(const volatile __u32 *)&meta->last_seen_tick;

	return ticks > 0 ? ticks : 0;
}

static __always_inline int is_idle(const struct expire *e, const struct ct_meta *meta,
				   const struct ct_meta *twin)
{
	return idle_ticks(meta, e->now_tick) > e->idle_ticks &&
	       (!twin || idle_ticks(twin, e->now_tick) > e->idle_ticks);
}

/* Marks an entry, whose state was state, as being deleted. Returns whether it is marked. */
static __always_inline int entry_mark(struct ct_meta *meta, __u8 state)
{
	return state == CT_ENDING || state_swap(meta, state, CT_ENDING);
}

/* Marks both entries of a connection as being deleted, unless the connection must stay. Packets
 * check the mark of their own entry (ct_seen, ct_stays).
 */
static __always_inline int expire_mark(struct expire *e, struct ct_meta *meta, struct ct_meta *twin)
{
	__u8 state = *(volatile __u8 *)&meta->state;
	__u8 twin_state = twin ? *(volatile __u8 *)&twin->state : CT_ENDING;

	e->state = state;
	if (e->force) {
		entry_mark(meta, state);
		if (twin)
			entry_mark(twin, twin_state);
		return 1;
	}
	if (!is_idle(e, meta, twin) || !entry_mark(meta, state))
		return 0;
	if ((!twin || entry_mark(twin, twin_state)) && is_idle(e, meta, twin))
		return 1;
	state_swap(meta, CT_ENDING, state);
	if (twin)
		state_swap(twin, CT_ENDING, twin_state);
	return 0;
}

/* Reports whether the key of the other direction, in work, is the key that loxilightd has seen.
 * Else the client has opened another connection with the same port meanwhile.
 */
static __always_inline int expire_is_meant(const struct expire *e, const struct work *w)
{
	const key_word *now =
		(const key_word *)(e->family == 6 ? (void *)&w->key6 : (void *)&w->key4);
	const key_word *then =
		(const key_word *)(e->family == 6 ? (void *)&e->twin6 : (void *)&e->twin4);

	if (now[0] != then[0] || now[1] != then[1])
		return 0;
	return e->family != 6 || (now[2] == then[2] && now[3] == then[3] && now[4] == then[4]);
}

/* Copies the counters of an entry, and removes it, which changes the time of its last packet. */
static __always_inline void expire_remove(__u32 six, __u32 index, struct ct_meta *meta_to,
					  struct ct_more *more_to)
{
	struct ct_meta *meta = ct_meta_at_far(six, index);
	struct ct_more *more = ct_more_at_far(six, index);

	if (!meta || !more)
		return;
	*meta_to = *meta;
	*more_to = *more;
	ct_remove(six, index);
}

/* Deletes the connection at index i of ll_expire. The entry of the replies is deleted first, so that
 * packets of the client meanwhile still find their own entry, with the mark. A global function, so
 * that the verifier walks it once.
 */
__noinline int expire_one(__u32 i)
{
	struct expire *e = bpf_map_lookup_elem(&ll_expire, &i);
	struct work *w = work_get();
	__u32 six, index, other;
	struct ct_meta *meta, *twin;

	if (!e || !w)
		return 0;
	e->result = EXPIRE_ABSENT;
	six = e->family == 6;
	w->key4 = e->key4;
	w->key6 = e->key6;
	index = ct_locate(six, CT_NOWHERE);
	meta = index == CT_NOWHERE ? NULL : ct_meta_at_far(six, index);
	if (!meta || !ct_twin_key(w, six, index))
		return 0;
	e->result = EXPIRE_STAYS;
	if (!expire_is_meant(e, w))
		return 0;
	other = ct_locate(six, index);
	twin = other != CT_NOWHERE && ct_is_pair(six, index, other) ? ct_meta_at_far(six, other)
								    : NULL;
	if (!expire_mark(e, meta, twin))
		return 0;
	e->result = twin ? EXPIRE_BOTH : EXPIRE_ALONE;
	if (twin && meta->flags & CT_F_REPLY)
		expire_remove(six, index, &e->meta, &e->more);
	if (twin)
		expire_remove(six, other, &e->twin, &e->twin_more);
	if (!twin || !(meta->flags & CT_F_REPLY))
		expire_remove(six, index, &e->meta, &e->more);
	return 0;
}

SEC("tc")
int ll_expire_run(struct __sk_buff *skb)
{
	for (__u32 i = 0; i < EXPIRE_COUNT; i++) {
		__u32 index = i;
		struct expire *e = bpf_map_lookup_elem(&ll_expire, &index);

		if (!e || !e->family)
			break;
		expire_one(i);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
