/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct_conn.h - look-up, insertion and deletion of connections.
 *
 * A connection has two entries, one for each direction. The key of an entry is the arriving tuple,
 * its value the leaving tuple; the key of the other entry is the leaving tuple, reversed.
 */
#pragma once

#include "ct_table_room.h"

/* Writes the key of t to work. Returns whether it is IPv6. */
static __always_inline __u32 conn_key(struct work *w, const struct tuple *t)
{
	if (t->family == 4) {
		key4_from(&w->key4, t);
		return 0;
	}
	key6_from(&w->key6, t);
	return 1;
}

/* Returns the index of the entry of t, or CT_NOWHERE. */
static __always_inline __u32 conn_index(struct work *w, const struct tuple *t)
{
	return ct_locate(conn_key(w, t), CT_NOWHERE);
}

/* Copies the entry at index to c, except more, and returns its common part; NULL: it was removed
 * meanwhile.
 */
static __noinline struct ct_meta *conn_read(__u32 six, __u32 index, struct conn *c)
{
	c->index = index;
	if (six) {
		struct ct6 *e = ct6_at(index);

		if (!e)
			return NULL;
		c->meta = e->meta;
		c->saddr = e->saddr;
		c->daddr = e->daddr;
		c->sport = e->sport;
		c->dport = e->dport;
		return *(volatile key_word *)&e->key.sport ? &e->meta : NULL;
	} else {
		struct ct4 *e = ct4_at(index);

		if (!e)
			return NULL;
		c->meta = e->meta;
		addr_from4(&c->saddr, e->saddr);
		addr_from4(&c->daddr, e->daddr);
		c->sport = e->sport;
		c->dport = e->dport;
		return *(volatile key_word *)&e->key.sport ? &e->meta : NULL;
	}
}

/* Copies more of c, which conn_peek has found. A global function, so that the verifier walks it
 * once.
 */
__noinline int conn_read_more(__u32 six, struct conn *c)
{
	struct ct_more *more = c ? ct_more_at(six, c->index) : NULL;

	if (more)
		c->more = *more;
	return 0;
}

/* Finds the entry of t and copies it to c, except more, which is in a cache line of its own.
 * Returns the common part of the entry in the table, or NULL.
 */
static __always_inline struct ct_meta *conn_peek(struct work *w, const struct tuple *t,
						 struct conn *c)
{
	__u32 index = conn_index(w, t);

	return index == CT_NOWHERE ? NULL : conn_read(t->family != 4, index, c);
}

/* As conn_peek, and copies more too. */
static __always_inline struct ct_meta *conn_find(struct work *w, const struct tuple *t,
						 struct conn *c)
{
	struct ct_meta *meta = conn_peek(w, t, c);

	if (meta)
		conn_read_more(t->family != 4, c);
	return meta;
}

static __always_inline int conn_exists(struct work *w, const struct tuple *t)
{
	return conn_index(w, t) != CT_NOWHERE;
}

/* Write c to an entry, except its key. */
static __always_inline void ct4_write(struct ct4 *e, const struct conn *c)
{
	e->meta = c->meta;
	e->saddr = c->saddr.word[3];
	e->daddr = c->daddr.word[3];
	e->sport = c->sport;
	e->dport = c->dport;
}

static __always_inline void ct6_write(struct ct6 *e, const struct conn *c)
{
	e->meta = c->meta;
	e->saddr = c->saddr;
	e->daddr = c->daddr;
	e->sport = c->sport;
	e->dport = c->dport;
}

/* Write a key to an entry, its last word last: from then on, the entry can be found at its home. */
static __always_inline void ct4_publish(struct ct4 *e, const struct ct4_key *key)
{
	const key_word *from = (const key_word *)key;
	key_word *to = (key_word *)e;

	to[0] = from[0];
	__sync_lock_test_and_set(&to[1], from[1]);
}

static __always_inline void ct6_publish(struct ct6 *e, const struct ct6_key *key)
{
	const key_word *from = (const key_word *)key;
	key_word *to = (key_word *)e;

	for (int i = 0; i < 4; i++)
		to[i] = from[i];
	__sync_lock_test_and_set(&to[4], from[4]);
}

/* Writes c to the entry at index, except its key. A global function, so that the verifier walks it
 * once.
 */
__noinline int conn_write(__u32 six, __u32 index, const struct conn *c)
{
	struct ct_more *more = ct_more_at(six, index);

	if (!c || !more)
		return -E2BIG;
	*more = c->more;
	if (six) {
		struct ct6 *e = ct6_at(index);

		if (!e)
			return -E2BIG;
		ct6_write(e, c);
	} else {
		struct ct4 *e = ct4_at(index);

		if (!e)
			return -E2BIG;
		ct4_write(e, c);
	}
	return 0;
}

/* Writes the key in work to the entry at index. */
static __always_inline void conn_publish(const struct work *w, __u32 six, __u32 index)
{
	if (six) {
		struct ct6 *e = ct6_at_far(index);

		if (e)
			ct6_publish(e, &w->key6);
	} else {
		struct ct4 *e = ct4_at_far(index);

		if (e)
			ct4_publish(e, &w->key4);
	}
}

/* Reports whether the fast path may use the entry at index, and packets leave it by another tuple
 * than c's. Such an entry cannot be overwritten: a packet might leave by half of each.
 */
static __always_inline int conn_is_in_use(__u32 six, __u32 index, const struct conn *c)
{
	if (six) {
		struct ct6 *e = ct6_at_far(index);

		return e && e->meta.state >= CT_ESTABLISHED &&
		       (e->sport != c->sport || e->dport != c->dport ||
			!addr_equal(&e->saddr, &c->saddr) || !addr_equal(&e->daddr, &c->daddr));
	} else {
		struct ct4 *e = ct4_at_far(index);

		return e && e->meta.state >= CT_ESTABLISHED &&
		       (e->sport != c->sport || e->dport != c->dport ||
			e->saddr != c->saddr.word[3] || e->daddr != c->daddr.word[3]);
	}
}

/* Reads what an insertion under the key in work will change, so that the processor fetches all
 * these cache lines at once. Else it would fetch one after the other, since atomic operations wait
 * for each other. A global function, so that the verifier walks it once.
 */
__noinline int ct_fetch(__u32 six)
{
	struct work *w = work_get();

	if (!w)
		return 0;
	if (six) {
		__u32 home = ct_home(ct6_hash(&w->key6), 6, ct_segments(6)), slot = home % CT_BLOCK;
		struct ct6_block *b = ct6_block_at(home);

		if (b) {
			*(volatile __u64 *)&b->used;
			*(volatile __u32 *)&b->more[slot].created_tick;
			*(volatile __u32 *)&b->entry[slot].chain;
			*(volatile __u32 *)&b->entry[slot].meta.last_seen_tick;
		}
	} else {
		__u32 home = ct_home(ct4_hash(&w->key4), 4, ct_segments(4)), slot = home % CT_BLOCK;
		struct ct4_block *b = ct4_block_at(home);

		if (b) {
			*(volatile __u64 *)&b->used;
			*(volatile __u32 *)&b->more[slot].created_tick;
			*(volatile __u32 *)&b->entry[slot].chain;
		}
	}
	return 0;
}

/* Reads what an insertion under t changes: see ct_fetch. */
static __always_inline void conn_fetch(struct work *w, const struct tuple *t)
{
	ct_fetch(conn_key(w, t));
}

/* Insert c under the key in work, for which no entry was found: into a free place of the block of
 * its home. This is what nearly every insertion takes, by one look-up of the block. -EAGAIN:
 * conn_put_key has to find a place. Else 0, or -EEXIST if the key has another entry by now. Global
 * functions, so that the verifier walks each once.
 */
#define CT_ADD_NEW(family)                                                                      \
	__noinline int ct##family##_add_new(const struct conn *c)                               \
	{                                                                                       \
		struct work *w = work_get();                                                    \
		__u32 segments = ct_segments(family), home, slot, place, chain;                 \
		struct ct##family##_block *b;                                                   \
		struct ct##family *e;                                                           \
		__u64 h, free, bit;                                                             \
                                                                                                \
		if (!w || !c)                                                                   \
			return -E2BIG;                                                          \
		h = ct##family##_hash(&w->key##family);                                         \
		home = ct_home(h, family, segments);                                            \
		b = ct##family##_block_at(home);                                                \
		if (!b || ct_moves(h, segments))                                                \
			return -EAGAIN;                                                         \
		slot = home % CT_BLOCK;                                                         \
		chain = *(volatile __u32 *)&b->entry[slot].chain;                               \
		free = ~*(volatile __u64 *)&b->used;                                            \
		if (ct_bits(free) < CT_BLOCK - CT_BLOCK_BUSY)                                   \
			return -EAGAIN;                                                         \
		free = free >> slot | free << (CT_BLOCK - slot) % CT_BLOCK;                     \
		place = (slot + ct_lowest_bit(free)) % CT_BLOCK;                                \
		e = &b->entry[place];                                                           \
		bit = 1ULL << place;                                                            \
		if ((__s32)(c->meta.last_seen_tick - e->meta.last_seen_tick) < CT_REST_TICKS || \
		    (place != slot && !chain_has_room(chain)) ||                                \
		    __sync_fetch_and_or(&b->used, bit) & bit)                                   \
			return -EAGAIN;                                                         \
		ct##family##_write(e, c);                                                       \
		b->more[place] = c->more;                                                       \
		ct##family##_publish(e, &w->key##family);                                       \
		w->last_put = home - slot + place;                                              \
		if (place != slot && ct_link(family == 6, w->last_put, home)) {                 \
			ct##family##_remove(w->last_put);                                       \
			return -EAGAIN;                                                         \
		}                                                                               \
		if (ct##family##_search(w, home, w->last_put) == CT_NOWHERE &&                  \
		    (!(w->chain & CHAIN_ELSEWHERE) ||                                           \
		     ct_locate(family == 6, w->last_put) == CT_NOWHERE))                        \
			return 0;                                                               \
		ct_remove(family == 6, w->last_put);                                            \
		return -EEXIST;                                                                 \
	}

CT_ADD_NEW(4)
CT_ADD_NEW(6)

/* Takes a place for the key in work, whose homes are in work too, removing other connections if there
 * is none. Returns its index, or CT_NOWHERE.
 */
static __always_inline __u32 conn_place(struct work *w, __u32 six)
{
	__u64 *used = ct_used_at_far(six, w->home);
	__u64 *other = ct_used_at_far(six, w->home_elsewhere);
	__u32 first = w->home, second = w->home_elsewhere;

	/* So that few blocks get full of connections that must stay. */
	if (used && other && ct_bits(*used) > CT_BLOCK_BUSY && ct_bits(*other) < ct_bits(*used)) {
		first = w->home_elsewhere;
		second = w->home;
	}
	for (__u32 rested = 1; rested < 2; rested--) {
		__u32 index = ct_claim(six, first, rested);

		if (index == CT_NOWHERE)
			index = ct_claim(six, second, rested);
		if (index != CT_NOWHERE)
			return index;
	}
	return ct_room(w, six);
}

#define CONN_PUT_TRIES 4 /* insertions by two CPUs at once may both give way */

/* Inserts c under the key in work; as conn_put. A global function, so that the verifier walks it
 * once.
 */
__noinline int conn_put_key(__u32 six, const struct conn *c, __u64 flags)
{
	struct work *w = work_get();
	__u32 index;

	if (!c || !w)
		return -E2BIG;
	for (int i = 0; i < CONN_PUT_TRIES; i++) {
		int ret;

		index = ct_locate(six, CT_NOWHERE);
		if (index != CT_NOWHERE) {
			if (flags & BPF_NOEXIST)
				return -EEXIST;
			if (!conn_is_in_use(six, index, c)) {
				if (conn_is_half_open(c))
					ct_leave(six, index);
				return conn_write(six, index, c);
			}
			ct_remove(six, index);
		}
		index = conn_place(w, six);
		if (index == CT_NOWHERE || conn_write(six, index, c))
			return -E2BIG;
		conn_publish(w, six, index);
		w->last_put = index;
		ret = ct_add(w, six, index);
		if (ret != -EEXIST || flags & BPF_NOEXIST)
			return ret;
		/* Another CPU has added an entry at once: it is there, or both gave way. */
	}
	return -E2BIG;
}

/* Inserts c under t. Returns 0 or a negative errno: -E2BIG if the table is full, -EEXIST with
 * BPF_NOEXIST if an entry exists.
 */
static __always_inline int conn_put(const struct tuple *t, const struct conn *c, __u64 flags)
{
	struct work *w = work_get();

	return w ? conn_put_key(conn_key(w, t), c, flags) : -E2BIG;
}

/* Inserts c under t if t has no entry. Returns 0, -EEXIST or -E2BIG. The caller has not found one:
 * if another CPU has just inserted one, or an entry of the same connection was left over, both can
 * be found for a moment.
 */
static __always_inline int conn_add(const struct tuple *t, const struct conn *c)
{
	struct work *w = work_get();
	__u32 six;
	int ret;

	if (!w)
		return -E2BIG;
	six = conn_key(w, t);
	ret = six ? ct6_add_new(c) : ct4_add_new(c);
	return ret == -EAGAIN ? conn_put_key(six, c, BPF_NOEXIST) : ret;
}

/* Removes the entry of t. Returns 0, or -ENOENT if there is none. */
static __always_inline int conn_remove(const struct tuple *t)
{
	struct work *w = work_get();
	__u32 index;

	if (!w)
		return -ENOENT;
	index = conn_index(w, t);
	return index == CT_NOWHERE ? -ENOENT : ct_remove(t->family != 4, index);
}
