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

#include "maps.h"
#include "pkt.h"
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

/* Reports whether twin, found under the key of the other direction, belongs to the connection of
 * key, and not to another connection.
 */
static __always_inline int is_twin4(const struct ct4_key *key, const struct ct4_val *twin)
{
	return twin->saddr == key->daddr && twin->daddr == key->saddr &&
	       twin->sport == key->dport && twin->dport == key->sport;
}

static __always_inline int is_twin6(const struct ct6_key *key, const struct ct6_val *twin)
{
	return addr_equal(&twin->saddr, &key->daddr) && addr_equal(&twin->daddr, &key->saddr) &&
	       twin->sport == key->dport && twin->dport == key->sport;
}

static __always_inline void remove4(const struct ct4_key *key, int half_open)
{
	if (half_open)
		bpf_map_delete_elem(&ll_half4, key);
	else
		bpf_map_delete_elem(&ll_ct4, key);
}

static __always_inline void remove6(const struct ct6_key *key, int half_open)
{
	if (half_open)
		bpf_map_delete_elem(&ll_half6, key);
	else
		bpf_map_delete_elem(&ll_ct6, key);
}

/* Finds an entry in either table; half: 1 if in the half-open table. */
#define FIND(family, key, v, half)                              \
	half = 0;                                               \
	v = bpf_map_lookup_elem(&ll_ct##family, key);           \
	if (!v) {                                               \
		half = 1;                                       \
		v = bpf_map_lookup_elem(&ll_half##family, key); \
	}

/* Deletes the connection at index of ll_expire. The entry of the replies is deleted first, so that
 * packets of the client still find their own entry, which is marked. Global functions, so
 * that the verifier walks each once.
 */
#define EXPIRE(family)                                                      \
	__noinline int expire##family(__u32 index)                          \
	{                                                                   \
		struct expire *e = bpf_map_lookup_elem(&ll_expire, &index); \
		struct ct##family##_key other = {};                         \
		struct ct##family##_val *v, *twin;                          \
		int v_half, twin_half, answers;                             \
                                                                            \
		if (!e)                                                     \
			return 0;                                           \
		e->result = EXPIRE_ABSENT;                                  \
		FIND(family, &e->key##family, v, v_half);                   \
		if (!v)                                                     \
			return 0;                                           \
		other.saddr = v->daddr;                                     \
		other.daddr = v->saddr;                                     \
		other.sport = v->dport;                                     \
		other.dport = v->sport;                                     \
		other.proto = e->key##family.proto;                         \
		other.netns = e->key##family.netns;                         \
		other.domain = e->key##family.domain;                       \
		FIND(family, &other, twin, twin_half);                      \
		if (twin && !is_twin##family(&e->key##family, twin))        \
			twin = NULL;                                        \
		e->result = EXPIRE_STAYS;                                   \
		if (!expire_mark(e, &v->meta, twin ? &twin->meta : NULL))   \
			return 0;                                           \
		e->meta = v->meta;                                          \
		e->result = EXPIRE_ALONE;                                   \
		if (!twin) {                                                \
			remove##family(&e->key##family, v_half);            \
			return 0;                                           \
		}                                                           \
		e->twin = twin->meta;                                       \
		e->result = EXPIRE_BOTH;                                    \
		answers = e->twin.flags & CT_F_REPLY;                       \
		if (answers)                                                \
			remove##family(&other, twin_half);                  \
		remove##family(&e->key##family, v_half);                    \
		if (!answers)                                               \
			remove##family(&other, twin_half);                  \
		return 0;                                                   \
	}

EXPIRE(4)
EXPIRE(6)

SEC("tc")
int ll_expire_run(struct __sk_buff *skb)
{
	for (__u32 i = 0; i < EXPIRE_COUNT; i++) {
		__u32 index = i;
		struct expire *e = bpf_map_lookup_elem(&ll_expire, &index);

		if (!e || !e->family)
			break;
		if (e->family == 4)
			expire4(i);
		else
			expire6(i);
	}
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
