/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* policy.h - looks up the verdicts of network policies.
 *
 * The verdict on the traffic of an Endpoint with a peer takes a fixed number of look-ups: the table of
 * the Endpoint, the class of the peer's address (a hash, or the trie of prefixes), the row of that
 * class in the table, and in the row the cell of the protocol and port. types_policy.h describes them,
 * and datapath/policy how policies become tables.
 */
#pragma once

#include <linux/in.h>

#include "clock.h"
#include "fw_classify.h"
#include "policy_port.h"

/* The trie of prefixes, or the row's trie of ports, is walked by the function for the image's size. */
static __always_inline __u32 policy_walk(const void *image, walk_fn *walk, __u32 entry, __u64 hi,
					 __u64 lo)
{
	return entry & ENTRY_LEAF ? entry & ENTRY_VALUE : walk(image, entry, hi, lo);
}

/* Returns the class of the peer. */
static __always_inline __u32 policy_class(const void *image, walk_fn *walk, struct policy_query *q)
{
	const struct policy_header *header = image;
	__u32 side = !!(q->word & POLICY_SIDE), class = POLICY_NO_CLASS;
	const __u32 *w = (const __u32 *)&q->peer;
	const struct policy_addr *addr;
	struct work *work = work_get();
	__u64 hi, lo;

	if (q->node)
		return header->node_class[side];
	if (!work)
		return 0;
	/* Linux 6.1 looks up no key in the memory of an argument, and the stack is short. */
	work->learned_key.addr = q->peer;
	addr = bpf_map_lookup_elem(&ll_policy_addr, &work->learned_key.addr);
	if (addr) {
		class = addr->class[side];
		q->self = addr->port[side] == q->endpoint;
	}
	if (class != POLICY_NO_CLASS)
		return class;
	hi = (__u64)bpf_ntohl(w[0]) << 32 | bpf_ntohl(w[1]);
	lo = (__u64)bpf_ntohl(w[2]) << 32 | bpf_ntohl(w[3]);
	if (q->family == 4)
		return policy_walk(image, walk, header->root4[side], lo << 32, 0);
	return policy_walk(image, walk, header->root6[side], hi, lo);
}

/* A list of names that is searched. */
struct name_search {
	const void *image;
	struct policy_query *query;
};

/* Takes the verdict of the name at index i of the list, if it has the peer's address and its rule comes
 * first.
 */
static __always_inline long name_look(const struct name_search *s, __u32 mask, __u32 i)
{
	struct policy_query *q = s->query;
	struct work *w = work_get(); /* the stack has no room for a key */
	const struct learned *learned;
	__u32 flags, self;

	if (!w)
		return 1;
	w->name = *(struct policy_name *)IMAGE_AT(s->image, mask,
						  (__u64)q->names + i * sizeof(w->name));
	flags = w->name.flags & q->undecided;
	if (!flags)
		return 0;
	w->learned_key.addr = q->peer;
	w->learned_key.name = w->name.name;
	w->learned_key.network = q->network;
	learned = bpf_map_lookup_elem(&ll_learned, &w->learned_key);
	if (!learned || (!q->running && (__s32)(q->now_tick - learned->expiry_tick) > 0))
		return 0;
	self = q->self & 1;
	if (flags & NAME_DECIDES(self)) {
		q->cell.action[self] = ACTION_ALLOW;
		q->cell.rule[self] = w->name.rule;
	}
	if (flags & NAME_DECIDES_STAGED(self)) {
		q->cell.staged[self] = ACTION_ALLOW;
		q->cell.staged_rule[self] = w->name.flags & NAME_OF_STAGED ? w->name.rule : 0;
	}
	q->undecided &= ~flags;
	return !q->undecided;
}

/* Finds the cell for q in a table. 0: found. -1: the image cannot be read. */
static __always_inline int policy_search(const void *image, __u32 mask, walk_fn *walk,
					 struct policy_query *q, __u32 table)
{
	const struct policy_header *header = image;
	const struct policy_row *row;
	__u32 entry;

	if (header->magic != POLICY_MAGIC)
		return -1;
	table += policy_class(image, walk, q);
	row = IMAGE_AT(image, mask, (__u64) * (__u32 *)IMAGE_AT(image, mask, (__u64)table * 4) * 4);
	entry = q->proto == IPPROTO_TCP	   ? row->tcp
		: q->proto == IPPROTO_UDP  ? row->udp
		: q->proto == IPPROTO_SCTP ? row->sctp
					   : row->other;
	entry = policy_walk(image, walk, entry, (__u64)bpf_ntohs(q->port) << 48, 0);
	q->cell = *(struct policy_cell *)IMAGE_AT(image, mask, (__u64)entry * 4);
	q->names = 0;
	if (q->cell.action[0] & POLICY_HAS_NAMES) {
		q->cell.action[0] &= ~POLICY_HAS_NAMES;
		q->names = entry * 4 + sizeof(struct policy_cell);
	}
	return 0;
}

/* Returns the image in which q->word says policies are; NULL: it cannot be read. */
#define POLICY_IMAGE_OF(map, q)                                                             \
	({                                                                                  \
		__u32 zero__ = 0;                                                           \
		__u32 slot__ = (q)->word & POLICY_SLOT ? RULES_POLICY_OTHER : RULES_POLICY; \
		void *images__ = bpf_map_lookup_elem(map, &slot__);                         \
                                                                                            \
		images__ ? bpf_map_lookup_elem(images__, &zero__) : NULL;                   \
	})

/* The functions that depend on the size of the image. Global functions, so that the verifier walks
 * them once.
 */
#define POLICY_FUNCTIONS(size, mask)                                                        \
	__noinline int policy_##size(struct policy_query *q, __u32 table)                   \
	{                                                                                   \
		void *image;                                                                \
                                                                                            \
		if (!q)                                                                     \
			return -1;                                                          \
		image = POLICY_IMAGE_OF(&ll_image_##size, q);                               \
		if (!image)                                                                 \
			return -1;                                                          \
		return policy_search(image, mask, (walk_fn *)walk_##size, q, table);        \
	}                                                                                   \
                                                                                            \
	static long name_##size(__u32 i, struct name_search *s)                             \
	{                                                                                   \
		return name_look(s, mask, i);                                               \
	}                                                                                   \
                                                                                            \
	__noinline int names_##size(struct policy_query *q)                                 \
	{                                                                                   \
		struct name_search s;                                                       \
		__u32 at;                                                                   \
                                                                                            \
		if (!q)                                                                     \
			return -1;                                                          \
		s.query = q;                                                                \
		s.image = POLICY_IMAGE_OF(&ll_image_##size, q);                             \
		if (!s.image)                                                               \
			return -1;                                                          \
		at = q->names;                                                              \
		q->names = at + 4;                                                          \
		bpf_loop(*(__u32 *)IMAGE_AT(s.image, mask, (__u64)at), name_##size, &s, 0); \
		return 0;                                                                   \
	}

POLICY_FUNCTIONS(128k, (1 << 17) - 1)
POLICY_FUNCTIONS(1m, (1 << 20) - 1)
POLICY_FUNCTIONS(8m, (1 << 23) - 1)
POLICY_FUNCTIONS(64m, (1 << 26) - 1)

/* Returns the table of an Endpoint in a direction; 0: no policy applies. known: the Endpoint is a subject
 * of policies, in this direction or the other.
 */
static __always_inline __u32 policy_table(__u32 endpoint, __u32 direction, __u32 word, __u32 *known)
{
	const struct policy_port *port = bpf_map_lookup_elem(&ll_policy_port, &endpoint);
	__u32 which = (word & POLICY_SIDE ? 2 : 0) + (direction == POLICY_EGRESS);

	if (!port)
		return 0;
	*known = 1;
	/* Else the compiler would drop the mask below, without which the verifier of Linux 6.1 does not
	 * bound the sum.
	 */
	asm volatile("" : "+r"(which));
	return ((const __u32 *)port->table)[which & 3];
}

/* Prepares the search for names of rules that come before the cell of q and have the peer's address. 0: no
 * names are learnt for the Endpoint. A global function, so that the verifier walks it once.
 */
__noinline int names_begin(struct policy_query *q)
{
	const struct policy_port *port;
	__u32 endpoint;

	if (!q || q->node)
		return 0;
	endpoint = q->endpoint;
	port = bpf_map_lookup_elem(&ll_policy_port, &endpoint);
	q->network = port ? port->network[!!(q->word & POLICY_SIDE)] : 0;
	q->now_tick = clock_tick();
	q->undecided = q->self ? NAME_DECIDES(1) | NAME_DECIDES_STAGED(1)
			       : NAME_DECIDES(0) | NAME_DECIDES_STAGED(0);
	return !!q->network;
}

/* Evaluates the names after the cell of q. 0, or -1: the tables cannot be read. */
static __always_inline int names_ask(struct policy_query *q)
{
	switch (q->word & POLICY_IMAGE) {
	case 1:
		return names_128k(q);
	case 2:
		return names_1m(q);
	case 3:
		return names_8m(q);
	case 4:
		return names_64m(q);
	}
	return -1;
}

/* Finds the cell for q. 0, or -1: the tables cannot be read. */
static __always_inline int policy_cell_of(struct policy_query *q, __u32 table)
{
	switch (q->word & POLICY_IMAGE) {
	case 1:
		return policy_128k(q, table);
	case 2:
		return policy_1m(q, table);
	case 3:
		return policy_8m(q, table);
	case 4:
		return policy_64m(q, table);
	}
	return -1;
}

/* Answers q, about traffic for which a table decides: fills q->cell. 0, or -1: the tables cannot be
 * read.
 */
static __always_inline int policy_ask(struct policy_query *q, __u32 table)
{
	q->self = 0;
	if (policy_cell_of(q, table))
		return -1;
	return q->names && names_begin(q) ? names_ask(q) : 0;
}
