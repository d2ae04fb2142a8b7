/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tun_return.h - replies to the node of a peer, whose packets came through the tunnel with its
 * underlay address as source. The kernel's routes lead to that address outside of tunnels, where
 * the peer accepts no packets of pods, so these replies are encapsulated here, all of them.
 */
#pragma once

#include "clock.h"
#include "ct.h"
#include "rewrite.h"
#include "tun_encap.h"

/* Returns the MTU of inner packets to the peer index, in bytes: of the tunnel's device, or of the
 * path.
 */
static __always_inline __u32 return_mtu(const struct peer *peer, __u32 index)
{
	struct device *device = device_find(peer->device_ifindex);
	struct peer_pmtu *path = bpf_map_lookup_elem(&ll_peer_pmtu, &index);
	__u32 mtu_bytes = device ? device->mtu_bytes : 0, inner;

	if (!path || !path->mtu_bytes ||
	    ticks_since(clock_tick(), path->heard_tick) >= PATH_MTU_TICKS)
		return mtu_bytes;
	inner = path->mtu_bytes - (peer->header_len - ETH_HLEN);
	return inner < mtu_bytes ? inner : mtu_bytes;
}

/* Finds the peer to which w->conn, replies that arrived as w->tuple, has to be returned: the one from
 * whose tunnel the last packet of the client came. 0: none, the kernel routes them. w->return_mtu is
 * the MTU of the path. A global function, so that the verifier walks it once.
 */
__noinline __u32 return_peer(void)
{
	struct work *w = work_get();
	struct peer *peer;
	__u32 index;

	if (!w)
		return 0;
	tuple_reply(&w->twin_tuple, &w->conn, &w->tuple);
	if (!conn_find(w, &w->twin_tuple, &w->twin, 0) || !(w->twin.meta.in_port & IN_PORT_PEER))
		return 0;
	index = w->twin.meta.in_port & ~IN_PORT_PEER;
	peer = bpf_map_lookup_elem(&ll_peer, &index);
	if (!peer || !peer->tunnel_id || !addr_equal(&peer->remote, &w->conn.daddr))
		return 0;
	w->return_mtu = return_mtu(peer, index);
	return index;
}
