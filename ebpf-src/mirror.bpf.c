/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* mirror.bpf.c - the programs of mirrors, on mirrored ports and on the targets of mirrors. They never
 * change the packets that they copy, and run at the outer ends of the hooks, so that copies are the
 * frames on the wire.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "parse.h"
#include "mirror_copy.h"
#include "mirror_encap.h"
#include "mirror_send.h"

/* On the ingress hook of a mirrored port, and of the link between host and switch if copies cross it;
 * before ll_tc_ingress.
 */
SEC("tc")
int ll_mirror_in(struct __sk_buff *skb)
{
	const struct mirror_port *port = mirror_port_of(skb);
	__u64 conn;
	struct pkt p;

	if (skb->tc_index & TC_INDEX_UNDERLAY && mirror_crosses(skb))
		skb->mark = MARK_COPY; /* which was lost between the namespaces */
	if (!port || skb->mark == MARK_COPY || mirror_is_returned(skb))
		return TC_ACT_UNSPEC;
	__builtin_memset(&p, 0, sizeof(p));
	conn = port->conn;
	if ((skb->tc_index & TC_INDEX_INNER) != TC_INDEX_INNER) /* it comes from no tunnel */
		conn &= ~port->crossed;
	mirror_all(skb, &p, port->in | conn, conn, port->rule & conn);
	return TC_ACT_UNSPEC;
}

/* On the egress hook of a mirrored port, after ll_tc_egress. */
SEC("tc")
int ll_mirror_out(struct __sk_buff *skb)
{
	const struct mirror_port *port = mirror_port_of(skb);
	__u64 conn = 0, rule = 0;
	struct pkt p;

	if (!port || skb->mark == MARK_COPY)
		return TC_ACT_UNSPEC;
	if (!skb->ingress_ifindex) {
		conn = port->sent;
		rule = port->rule & conn;
	}
	__builtin_memset(&p, 0, sizeof(p));
	p.egress = 1;
	mirror_all(skb, &p, port->out | conn, conn, rule);
	return TC_ACT_UNSPEC;
}

/* On the egress hook of a target, before ll_tc_egress. */
SEC("tc")
int ll_mirror_send(struct __sk_buff *skb)
{
	__u32 word = skb->tc_index, slot = word & TC_INDEX_MIRROR;
	struct mirror *m;

	if (skb->mark != MARK_COPY || (word & ~TC_INDEX_MIRROR) != TC_INDEX_COPY)
		return TC_ACT_UNSPEC;
	skb->tc_index = 0;
	m = bpf_map_lookup_elem(&ll_mirror, &slot);
	if (!m || m->target[config_netns & 1] != skb->ifindex)
		return TC_ACT_SHOT; /* the mirror has just been changed */
	if (m->len_bytes && !mirror_cut(skb, m->len_bytes))
		return TC_ACT_SHOT;
	if (m->peer)
		return mirror_send_peer(skb, m);
	return mirror_fits_device(skb) ? TC_ACT_OK : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
