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
	struct addr key = q->peer; /* Linux 6.1 looks up no key in the memory of an argument */
	__u64 hi, lo;

	if (q->node)
		return header->node_class[side];
	addr = bpf_map_lookup_elem(&ll_policy_addr, &key);
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
	return 0;
}

/* The functions that depend on the size of the image. Global functions, so that the verifier walks
 * them once.
 */
#define POLICY_FUNCTIONS(size, mask)                                                 \
	__noinline int policy_##size(struct policy_query *q, __u32 table)            \
	{                                                                            \
		__u32 zero = 0, slot;                                                \
		void *images, *image;                                                \
                                                                                     \
		if (!q)                                                              \
			return -1;                                                   \
		slot = q->word & POLICY_SLOT ? RULES_POLICY_OTHER : RULES_POLICY;    \
		images = bpf_map_lookup_elem(&ll_image_##size, &slot);               \
		image = images ? bpf_map_lookup_elem(images, &zero) : NULL;          \
		if (!image)                                                          \
			return -1;                                                   \
		return policy_search(image, mask, (walk_fn *)walk_##size, q, table); \
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

/* Answers q, about traffic for which a table decides: fills q->cell. 0, or -1: the tables cannot be
 * read.
 */
static __always_inline int policy_ask(struct policy_query *q, __u32 table)
{
	q->self = 0;
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
