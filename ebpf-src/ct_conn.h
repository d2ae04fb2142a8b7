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

/* Copies the entry at index to c, and returns its common part; NULL: it was removed meanwhile. */
static __noinline struct ct_meta *conn_read(__u32 six, __u32 index, struct conn *c)
{
	struct ct_more *more = ct_more_at(six, index);

	if (!more)
		return NULL;
	c->more = *more;
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

/* Finds the entry of t and copies it to c. Returns the common part of the entry in the table, or
 * NULL.
 */
static __always_inline struct ct_meta *conn_find(struct work *w, const struct tuple *t,
						 struct conn *c)
{
	__u32 index = conn_index(w, t);

	return index == CT_NOWHERE ? NULL : conn_read(t->family != 4, index, c);
}

static __always_inline int conn_exists(struct work *w, const struct tuple *t)
{
	return conn_index(w, t) != CT_NOWHERE;
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
		e->meta = c->meta;
		e->saddr = c->saddr;
		e->daddr = c->daddr;
		e->sport = c->sport;
		e->dport = c->dport;
	} else {
		struct ct4 *e = ct4_at(index);

		if (!e)
			return -E2BIG;
		e->meta = c->meta;
		e->saddr = c->saddr.word[3];
		e->daddr = c->daddr.word[3];
		e->sport = c->sport;
		e->dport = c->dport;
	}
	return 0;
}

/* Writes the key in work to the entry at index, its last word last. */
static __always_inline void conn_publish(const struct work *w, __u32 six, __u32 index)
{
	if (six) {
		const key_word *from = (const key_word *)&w->key6;
		struct ct6 *e = ct6_at_far(index);
		key_word *to = (key_word *)e;

		if (!e)
			return;
		for (int i = 0; i < 4; i++)
			to[i] = from[i];
		__sync_lock_test_and_set(&to[4], from[4]);
	} else {
		const key_word *from = (const key_word *)&w->key4;
		struct ct4 *e = ct4_at_far(index);
		key_word *to = (key_word *)e;

		if (!e)
			return;
		to[0] = from[0];
		__sync_lock_test_and_set(&to[1], from[1]);
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

/* Inserts c under the key in work; as conn_put. A global function, so that the verifier walks it
 * once.
 */
__noinline int conn_put_key(__u32 six, const struct conn *c, __u64 flags)
{
	struct work *w = work_get();
	__u32 index;

	if (!c || !w)
		return -E2BIG;
	for (int i = 0; i < 2; i++) {
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
