/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* source_guard_addr.h - the permitted source addresses of packets from a pod's device. */
#pragma once

#include "maps.h"
#include "parse.h"
#include "fastpath_checks.h"

/* The addresses of a packet that is being checked, and the MAC of the pod. */
struct guarded {
	struct guard_key key; /* of the address to check next */
	struct addr saddr;    /* of the packet */
	struct addr daddr;
	__u16 mac[3];
	__u8 proto;
	__u8 pad;
};

static __always_inline int guard_is_mac(const struct guarded *g, const __u16 *mac)
{
	return g->mac[0] == mac[0] && g->mac[1] == mac[1] && g->mac[2] == mac[2];
}

/* Reports whether the address in g->key.addr, which is not ::, belongs to the sender. */
static __always_inline int guard_owns(const struct guarded *g)
{
	return bpf_map_lookup_elem(&ll_guard, &g->key) != NULL;
}

#define DHCP_CLIENT	68
#define DHCPV6_CLIENT	546
#define GUARD_L3	14
#define GUARD_L4_OFF_V6 54

/* Checks a datagram: only servers send to a DHCP client. */
static __always_inline int guard_udp(struct __sk_buff *skb, __u32 off, __u16 client)
{
	__be16 port;

	if (bpf_skb_load_bytes(skb, off + 2, &port, sizeof(port)))
		return -DROP_SPOOFED;
	return port == bpf_htons(client) ? -DROP_SPOOFED : LL_NEXT;
}
