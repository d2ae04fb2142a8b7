/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_table_room.h - makes room for an entry of the connection table whose two blocks are full.
 *
 * A connection that has expired gives up its place, or else a half-open or ended connection:
 * among ROOM_GROUP neighbours, of the client that has most of them, the connection that was silent
 * longest. So a client that opens connections endlessly displaces its own, and many clients with
 * few connections displace the oldest. If no client has two of these neighbours, as many others are
 * compared too: more would cost much under attack from many addresses, and change little, since
 * connections of honest clients are the youngest. With IPv6, one host can use all addresses of a
 * /64: of the /64 that has most of them, the client that has most gives up a place. If there is no
 * such connection in both blocks, a UDP connection in one direction makes room.
 */
#pragma once

#include "count.h"
#include "ct_idle.h"
#include "ct_table_put.h"

#define ROOM_GROUPS (CT_BLOCK / ROOM_GROUP)

/* room_best: 1 bit for GOES_EXPIRED, 1 for GOES_FIRST, 5 of the number of neighbours of the same
 * /64, 5 of the number of neighbours of the same client, and the age.
 */
#define ROOM_EXPIRED	  (1U << 31)
#define ROOM_FIRST	  (1U << 30)
#define ROOM_SITE_SHIFT	  25
#define ROOM_CLIENT_SHIFT 20
#define ROOM_AGE_MAX	  ((1U << ROOM_CLIENT_SHIFT) - 1)
#define ROOM_CLIENT_HAS_2 (2U << ROOM_CLIENT_SHIFT) /* in the bits that ROOM_CLIENT_BITS selects */
#define ROOM_CLIENT_BITS  (31U << ROOM_CLIENT_SHIFT)
#define ROOM_GROUPS_MORE  2 /* that are compared if a half-open connection was found */
#define ROOM_TRIES	  3
#define ROOM_EACH	  0x0001000100010001ULL /* four numbers of 16 bits: 1 */
#define ROOM_UPPER	  0x8000800080008000ULL /* their upper bits */

/* Returns whether an entry may be removed to make room. GOES_LAST: only if no other one nearby may,
 * since its client may have a forged address. Higher values go before lower ones.
 */
enum ct_goes {
	GOES_NEVER,
	GOES_LAST,
	GOES_FIRST,
	GOES_EXPIRED,
};

/* Returns the time without packets, from 1 to ROOM_AGE_MAX. */
static __always_inline __u32 ct_age(const struct ct_meta *meta, __u32 now_tick)
{
	__u32 age = ticks_since(now_tick, meta->last_seen_tick);

	return age < ROOM_AGE_MAX ? age + 1 : ROOM_AGE_MAX;
}

static __always_inline enum ct_goes ct_may_go(const struct work *w, const struct ct_meta *meta,
					      const struct ct_more *more)
{
	__u8 state = meta->state;

	if (!(meta->flags & CT_F_LASTING) || state == CT_TIME_WAIT || state == CT_CLOSED)
		return GOES_FIRST;
	if (state == CT_NEW) /* for the replies of CT_ONE_WAY: its other entry decides */
		return GOES_LAST;
	if (!w->room_young && ct_has_expired(meta, more, w->room_tick))
		return GOES_EXPIRED;
	return state == CT_ONE_WAY ? GOES_LAST : GOES_NEVER;
}

/* Writes the key of the other direction of the entry at index to work, and reports whether the
 * entry exists. Both have the same protocol, netns and domain; netns and domain need not be the
 * program's.
 */
static __always_inline int ct_twin_key(struct work *w, __u32 six, __u32 index)
{
	if (six) {
		struct ct6 *e = ct6_at_far(index);

		if (!e)
			return 0;
		w->key6 = e->key;
		w->key6.saddr = e->daddr;
		w->key6.daddr = e->saddr;
		w->key6.sport = e->dport;
		w->key6.dport = e->sport;
	} else {
		struct ct4 *e = ct4_at_far(index);

		if (!e)
			return 0;
		w->key4 = e->key;
		w->key4.saddr = e->daddr;
		w->key4.daddr = e->saddr;
		w->key4.sport = e->dport;
		w->key4.dport = e->sport;
	}
	return 1;
}

/* Reports whether two entries are the two directions of one connection. other was found under the
 * key of the other direction of index.
 */
static __always_inline int ct_is_pair(__u32 six, __u32 index, __u32 other)
{
	if (six) {
		struct ct6 *e = ct6_at_far(index), *twin = ct6_at_far(other);

		return e && twin && addr_equal(&twin->saddr, &e->key.daddr) &&
		       addr_equal(&twin->daddr, &e->key.saddr) && twin->sport == e->key.dport &&
		       twin->dport == e->key.sport;
	} else {
		struct ct4 *e = ct4_at_far(index), *twin = ct4_at_far(other);

		return e && twin && twin->saddr == e->key.daddr && twin->daddr == e->key.saddr &&
		       twin->sport == e->key.dport && twin->dport == e->key.sport;
	}
}

static __always_inline void ct_count_gone(__u32 six, __u32 index)
{
	struct ct_meta *meta = ct_meta_at_far(six, index);
	struct ct_more *more = ct_more_at_far(six, index);

	if (meta && more)
		count_reused(meta, more);
}

/* Returns whether the entry at index may still be removed to make room. */
static __always_inline enum ct_goes ct_goes(const struct work *w, __u32 six, __u32 index)
{
	const struct ct_meta *meta = ct_meta_at_far(six, index);
	const struct ct_more *more = ct_more_at_far(six, index);

	return meta && more ? ct_may_go(w, meta, more) : GOES_NEVER;
}

/* Reports whether the connection of two entries, the first one chosen to make room, must stay: it
 * has become lasting, or only one direction has expired.
 */
static __always_inline int ct_must_stay(const struct work *w, __u32 six, __u32 index, __u32 other)
{
	enum ct_goes goes = ct_goes(w, six, index), both;

	if (goes == GOES_NEVER || (goes == GOES_LAST && w->room_best >= ROOM_FIRST))
		return 1;
	if (other == CT_NOWHERE)
		return 0;
	both = ct_goes(w, six, other);
	return both == GOES_NEVER || (both == GOES_LAST && goes == GOES_FIRST);
}

/* Reports whether the other direction of the connection of the entry at index, which has expired,
 * has too. Changes the key in work. A global function, so that the verifier walks it once.
 */
__noinline int ct_twin_expired(__u32 six, __u32 index, __u32 now_tick)
{
	struct work *w = work_get();
	const struct ct_meta *meta;
	const struct ct_more *more;
	__u32 other;

	if (!w || !ct_twin_key(w, six, index))
		return 0;
	other = ct_locate(six, index);
	if (other == CT_NOWHERE || !ct_is_pair(six, index, other))
		return 1;
	meta = ct_meta_at_far(six, other);
	more = ct_more_at_far(six, other);
	return meta && more && ct_has_expired(meta, more, now_tick);
}

/* Removes both directions of the connection of the entry at index, unless it must stay. Changes the
 * key in work, and its homes. Returns 0 if it is removed.
 */
static __always_inline int ct_evict_pair(struct work *w, __u32 six, __u32 index)
{
	__u32 other;

	if (!ct_twin_key(w, six, index))
		return -ENOENT;
	other = ct_locate(six, index);
	if (other != CT_NOWHERE && !ct_is_pair(six, index, other))
		other = CT_NOWHERE;
	if (ct_must_stay(w, six, index, other))
		return -EBUSY;
	if (other != CT_NOWHERE && !ct_remove(six, other))
		ct_count_gone(six, other);
	if (ct_remove(six, index))
		return -ENOENT;
	ct_count_gone(six, index);
	if (!(w->room_best & ROOM_EXPIRED))
		count_verdict(VERDICT_EVICTED);
	return 0;
}

/* As ct_evict_pair, but keeps the key and its homes. A global function, so that the verifier walks
 * it once.
 */
__noinline int ct_evict(__u32 six, __u32 index)
{
	struct work *w = work_get();
	int ret;

	if (!w)
		return -ENOENT;
	w->put4 = w->key4;
	w->put6 = w->key6;
	w->put_home = w->home;
	w->put_home_elsewhere = w->home_elsewhere;
	ret = ct_evict_pair(w, six, index);
	asm volatile("" : "+r"(w)); /* else addresses of its fields need stack */
	w->key4 = w->put4;
	w->key6 = w->put6;
	w->home = w->put_home;
	w->home_elsewhere = w->put_home_elsewhere;
	return ret;
}

/* Returns a number of 16 bits, not 0, for a client or a /64. Two have the same one by chance; a
 * sender that does not know the keys of the hash cannot choose addresses with the same.
 */
static __always_inline __u16 room_tag(__u64 id)
{
	return ct_hash_end(ct_hash_words(0, id, 1)) >> 48 | 1;
}

/* Writes to place i in work whether the entry at index could make room: if so, its rank and age,
 * and numbers, not 0, for its client and for the /64 of its client. A global function, so that the
 * verifier walks it once.
 */
__noinline int ct_room_look(__u32 six, __u32 index, __u32 i)
{
	struct work *w = work_get();
	const struct ct_more *more;
	const struct ct_meta *meta;
	__u64 site, client;
	enum ct_goes goes;

	if (!w || i >= ROOM_GROUP)
		return 0;
	w->room_client[i] = w->room_site[i] = 0;
	w->room_index[i] = index;
	if (index == w->last_put || index == w->room_not)
		return 0;
	if (six) {
		struct ct6_block *b = ct6_block_at(index);
		const key_word *addr;
		struct ct6 *e;

		if (!b)
			return 0;
		e = &b->entry[index % CT_BLOCK];
		if (!*(volatile key_word *)&e->key.sport)
			return 0;
		meta = &e->meta;
		more = &b->more[index % CT_BLOCK];
		addr = (const key_word *)(meta->flags & CT_F_REPLY ? &e->daddr : &e->key.saddr);
		site = ct_hash_words(config_ct_hash[0], addr[0], 1);
		client = ct_hash_words(site, addr[1], 3);
	} else {
		struct ct4_block *b = ct4_block_at(index);
		struct ct4 *e;

		if (!b)
			return 0;
		e = &b->entry[index % CT_BLOCK];
		if (!*(volatile key_word *)&e->key.sport)
			return 0;
		meta = &e->meta;
		more = &b->more[index % CT_BLOCK];
		site = (__u64)(meta->flags & CT_F_REPLY ? e->daddr : e->key.saddr) << 1;
		client = site;
	}
	goes = ct_may_go(w, meta, more);
	if (goes == GOES_NEVER)
		return 0;
	w->room_site[i] = room_tag(site);
	w->room_client[i] = room_tag(client);
	w->room_age[i] = ct_age(meta, w->room_tick);
	if (goes == GOES_EXPIRED)
		w->room_age[i] |= ROOM_EXPIRED;
	if (goes == GOES_FIRST)
		w->room_age[i] |= ROOM_FIRST;
	return 0;
}

/* Returns how many of the four numbers of 16 bits in each word of tags are tag. Without branches:
 * in a loop, the verifier would try each.
 */
static __always_inline __u32 room_count(const __u64 *tags, __u16 tag)
{
	__u64 sum = 0;

	for (int i = 0; i < ROOM_GROUP / 4; i++) {
		__u64 other = tags[i] ^ tag * ROOM_EACH;

		/* the upper bit of each number that is not 0 */
		other |= (other & ~ROOM_UPPER) + ~ROOM_UPPER;
		sum += (~other & ROOM_UPPER) >> 15;
	}
	return sum * ROOM_EACH >> 48;
}

/* Compares entry i that ct_room_look found with the best one so far. A global function, so that the
 * verifier walks it once.
 */
__noinline int ct_room_compare(__u32 i)
{
	struct work *w = work_get();
	__u32 best;

	if (!w || i >= ROOM_GROUP || !w->room_client[i])
		return 0;
	best = room_count((const __u64 *)w->room_site, w->room_site[i]) << ROOM_SITE_SHIFT |
	       room_count((const __u64 *)w->room_client, w->room_client[i]) << ROOM_CLIENT_SHIFT |
	       w->room_age[i];
	if (best > w->room_best) {
		w->room_best = best;
		w->room_victim = w->room_index[i];
	}
	return 0;
}

/* Reports whether the best entry so far is good enough: it has expired, or its client has another
 * one nearby.
 */
static __always_inline int ct_room_suffices(const struct work *w)
{
	return w->room_best & ROOM_EXPIRED ||
	       (w->room_best & ROOM_FIRST &&
		(w->room_best & ROOM_CLIENT_BITS) >= ROOM_CLIENT_HAS_2);
}

/* Reads the entries of a group, so that the processor fetches all their cache lines at once. A
 * global function, so that the verifier walks it once.
 */
__noinline int ct_room_fetch(__u32 six, __u32 first)
{
	__u32 slot = first % CT_BLOCK & ~(ROOM_GROUP - 1U);

	if (six) {
		struct ct6_block *b = ct6_block_at(first);

		if (!b)
			return 0;
		for (__u32 i = 0; i < ROOM_GROUP; i++) {
			*(volatile __u32 *)&b->entry[slot + i].chain;
			*(volatile __u8 *)&b->entry[slot + i].meta.state;
		}
		for (__u32 i = 0; i < ROOM_GROUP; i += 64 / sizeof(struct ct_more))
			*(volatile __u32 *)&b->more[slot + i].created_tick;
	} else {
		struct ct4_block *b = ct4_block_at(first);

		if (!b)
			return 0;
		for (__u32 i = 0; i < ROOM_GROUP; i++)
			*(volatile __u32 *)&b->entry[slot + i].chain;
		for (__u32 i = 0; i < ROOM_GROUP; i += 64 / sizeof(struct ct_more))
			*(volatile __u32 *)&b->more[slot + i].created_tick;
	}
	return 0;
}

/* Looks for the entry in the block of a home that makes room, if the home can have another link. */
static __always_inline void ct_room_at(struct work *w, __u32 six, __u32 home)
{
	__u32 first = (home ^ bpf_get_prandom_u32() % CT_BLOCK) & ~(ROOM_GROUP - 1U);

	__u32 *chain = ct_chain_at_far(six, home);

	if (!chain || !chain_has_room(*chain))
		return;
	for (__u32 i = 0; i < ROOM_GROUPS; i++) {
		if (ct_room_suffices(w) || (i >= ROOM_GROUPS_MORE && w->room_best >= ROOM_FIRST))
			break;
		ct_room_fetch(six, first ^ i * ROOM_GROUP);
		for (__u32 j = 0; j < ROOM_GROUP; j++)
			ct_room_look(six, first ^ (i * ROOM_GROUP + j), j);
		for (__u32 j = 0; j < ROOM_GROUP; j++)
			ct_room_compare(j);
	}
}

/* Looks for the entry that makes room among those linked at a home. */
static __always_inline void ct_room_linked(struct work *w, __u32 six, __u32 home)
{
	__u32 *chain = ct_chain_at_far(six, home);

	for (int i = 0; chain && i < ROOM_GROUP; i++) {
		__u32 link = i < CHAIN_LINKS ? *chain >> (i * CHAIN_LINK_BITS) & (CT_BLOCK - 1) : 0;

		ct_room_look(six, link ? home ^ link : w->last_put, i);
	}
	for (__u32 i = 0; i < CHAIN_LINKS; i++)
		ct_room_compare(i);
}

/* Writes to work which entry makes room in the blocks of the homes in work. Returns whether there
 * is one. A global function, so that the verifier walks it once.
 */
__noinline int ct_room_find(__u32 six)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	w->room_best = 0;
	ct_room_at(w, six, w->home);
	if (w->room_best < ROOM_FIRST)
		ct_room_at(w, six, w->home_elsewhere);
	if (!w->room_best)
		ct_room_linked(w, six, w->home);
	return w->room_best != 0;
}

/* Makes room in the blocks of the homes in work. Returns the index of a place that is taken for the
 * caller, or CT_NOWHERE.
 */
static __always_inline __u32 ct_room(struct work *w, __u32 six)
{
	__u64 bit, *used;
	__u32 index;
	int ret = -EBUSY;

	w->room_tick = clock_tick();
	w->room_not = CT_NOWHERE;
	w->room_young = 0;
	for (int i = 0; i < ROOM_TRIES && ret == -EBUSY && ct_room_find(six); i++) {
		ret = ct_evict(six, w->room_victim);
		w->room_not = w->room_victim;
		w->room_young = i; /* many may have expired in one direction only */
	}
	if (ret)
		return CT_NOWHERE;
	index = w->room_victim;
	used = ct_used_at_far(six, index);
	bit = 1ULL << (index & (CT_BLOCK - 1));
	return used && !(__sync_fetch_and_or(used, bit) & bit) ? index : CT_NOWHERE;
}
