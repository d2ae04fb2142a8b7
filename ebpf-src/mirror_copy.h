/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror_copy.h - takes copies of packets and sends them to the targets of mirrors. */
#pragma once

#include "maps.h"
#include "mirror_match.h"
#include "pkt.h"

#define VLAN_TAG_LEN 4

/* Returns the length of a frame on the wire: the kernel keeps a VLAN tag outside the frame. */
static __always_inline __u32 mirror_frame_len(struct __sk_buff *skb)
{
	return skb->len + (skb->vlan_present ? VLAN_TAG_LEN : 0);
}

static __always_inline void mirror_count(__u32 slot, __u32 len, int sent)
{
	struct mirror_stats *s = bpf_map_lookup_elem(&ll_mirror_stats, &slot);

	if (!s)
		return;
	if (sent) {
		s->packet_count++;
		s->byte_count += len;
	} else {
		s->drop_count++;
	}
}

/* Sends a copy to the target of m. The target's egress hook, which runs before this returns, cuts and
 * encapsulates it. The packet itself is unchanged afterwards.
 */
static __always_inline void mirror_copy(struct __sk_buff *skb, const struct mirror *m, __u32 slot)
{
	__u32 out = m->target[config_netns & 1], cut = m->len_bytes, len = mirror_frame_len(skb);
	__u32 mark = skb->mark, word = skb->tc_index;
	long failed;

	if (!out)
		return;
	skb->mark = MARK_COPY;
	skb->tc_index = TC_INDEX_COPY | slot;
	failed = bpf_clone_redirect(skb, out, 0);
	skb->mark = mark;
	skb->tc_index = word;
	mirror_count(slot, cut && cut < len ? cut : len, !failed);
}

/* Copies a packet for the mirror at slot if it matches. ret: the result of parsing. A global
 * function, so that the verifier walks it once.
 */
__noinline int mirror_consider(struct __sk_buff *skb, struct pkt *p, __u32 slot, int ret)
{
	struct mirror *m = bpf_map_lookup_elem(&ll_mirror, &slot);

	if (m && p && mirror_matches(m, p, ret))
		mirror_copy(skb, m, slot & TC_INDEX_MIRROR);
	return 0;
}

/* Copies a packet for each mirror in the mask. */
static __always_inline void mirror_all(struct __sk_buff *skb, struct pkt *p, __u64 mask)
{
	int ret;

	__builtin_memset(p, 0, sizeof(*p));
	ret = parse_packet(skb, p);
	p->skb = skb;
	for (__u32 slot = 0; slot < MIRROR_COUNT; slot++) {
		if (!(mask >> slot))
			break;
		if (mask >> slot & 1)
			mirror_consider(skb, p, slot, ret);
	}
}

/* Returns the mirrors of the device at hand, or NULL. */
static __always_inline const struct mirror_port *mirror_port_of(struct __sk_buff *skb)
{
	struct device_key key = { .ifindex = skb->ifindex, .netns = config_netns };

	return bpf_map_lookup_elem(&ll_mirror_port, &key);
}

/* Reports whether the node sent this packet back to itself (route_back): it does not arrive from the
 * wire.
 */
static __always_inline int mirror_is_returned(struct __sk_buff *skb)
{
	return skb->mark == MARK_OURS && (skb->tc_index & 0xff00) == TC_INDEX_DONE_INGRESS;
}
