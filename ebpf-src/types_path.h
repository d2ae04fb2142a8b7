/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_path.h - keys and values of the maps of devices, next hops, bridge ports and source
 * guards.
 */
#pragma once

#include "types.h"

/* --- next hops --- */

#define NEXTHOP_COUNT 16384

enum nexthop_flag {
	NEXTHOP_F_PEER = 0x1,	   /* a veth whose other end is in another netns */
	NEXTHOP_F_BRIDGED = 0x2,   /* only frames to dmac are sent, unchanged */
	NEXTHOP_F_MEMBER = 0x4,	   /* port of a bridge or bond: confirmed by the slow path */
	NEXTHOP_F_TUNNEL = 0x8,	   /* a tunnel's device: packets are encapsulated for a peer */
	NEXTHOP_F_NO_QDISC = 0x10, /* no qdisc limits or orders its packets */
	NEXTHOP_F_XDP_XMIT = 0x20, /* as NEXTHOP_F_NO_QDISC, and its driver transmits XDP frames */
};

/* A neighbour as the kernel's slow path last used it. ifindex 0: invalid, to be learnt again; the
 * other fields stay, for programs that are sending to it at that moment.
 */
struct nexthop {
	__u32 ifindex;
	__u32 mtu_bytes; /* of the IP packet */
	__u8 dmac[6];
	__u8 smac[6];
	__u32 flags;	    /* NEXTHOP_F_ */
	__u32 checked_tick; /* when the kernel last confirmed it */
	__u16 vid;	    /* VLAN tag of leaving frames; 0: none */
	__u16 peer;	    /* index into ll_peer, with NEXTHOP_F_TUNNEL */
};
_Static_assert(sizeof(struct nexthop) == 32, "two to a cache line");

struct nexthop_key {
	__u32 ifindex;
	__u32 mtu_bytes;
	__u8 dmac[6];
	__u8 smac[6]; /* zero if frames are sent unchanged */
	__u16 vid;
	__u8 netns;
	__u8 bridged;
};
_Static_assert(sizeof(struct nexthop_key) == 24, "layout is pinned");

/* --- bridges --- */

#define BRIDGED_WORDS 1024 /* for each netns: a bit for each lower half of an ifindex */

/* When the kernel's bridge was last given a frame of a source MAC. Not atomic: two processors may
 * mix two entries, both of which are then of this moment.
 */
struct bridge_seen {
	__u32 tick;
	__u32 ifindex; /* bridge port on which the frame arrived */
	__u16 vlan;    /* 12 bits, and config_netns above them */
	__u8 mac[6];
};
_Static_assert(sizeof(struct bridge_seen) == 16, "four to a cache line");

#define BRIDGE_SEEN_BITS 13 /* of the index of ll_bridge_seen, a hash of the MAC */

struct bridge_port_key {
	__u32 ifindex;
	__u16 vid; /* 0: untagged frames */
	__u8 netns;
	__u8 pad;
};
_Static_assert(sizeof(struct bridge_port_key) == 8, "layout is pinned");

enum bridge_port_flag {
	BRIDGE_PORT_F_GUARDED = 0x1, /* only bridge_port.guard may be the source MAC */
	/* Not a bridge port: packets sent by the device of a tunnel arrive here. */
	BRIDGE_PORT_F_TUNNEL = 0x2,
	/* A port of a bridge of pods, on which no address occurs twice: a connection has the same
	 * entries whether its packets are bridged or routed. So replies that the bridge delivers
	 * directly to a pod are translated, although the request was routed.
	 */
	BRIDGE_PORT_F_FLAT = 0x4,
};

/* The bridge port on which a frame arrives, in a VLAN. Every bridge port has an entry for vid 0. */
struct bridge_port {
	__u32 bridge; /* ifindex */
	__u16 domain; /* 0: the bridge refuses such frames, or their domain is unknown */
	__u16 vid;
	__u8 mac[6];   /* of the bridge: frames to it are routed */
	__u16 flags;   /* BRIDGE_PORT_F_ */
	__u8 guard[6]; /* BRIDGE_PORT_F_GUARDED: the only permitted source MAC */
	__u16 pad;
};
_Static_assert(sizeof(struct bridge_port) == 24, "layout is pinned");

/* --- source guards --- */

#define GUARDED_WORDS 1024 /* as BRIDGED_WORDS */

/* A permitted source address of a device; all zero: the entry of the device itself. */
struct guard_key {
	struct addr addr;
	__u32 ifindex;
	__u32 netns;
};
_Static_assert(sizeof(struct guard_key) == 24, "layout is pinned");

enum guard_flag {
	GUARD_F_OPEN = 0x1, /* entry of the device: all its addresses are inserted */
};

struct guard {
	__u8 mac[6]; /* the only permitted source MAC */
	__u16 flags; /* GUARD_F_ */
};

struct local_key {
	struct addr addr;
	__u32 netns;
};

/* Values of ll_netfilter. */
enum netfilter_flag {
	NETFILTER_F_ROUTED = 0x1,  /* rules exist that routed packets traverse */
	NETFILTER_F_BRIDGED = 0x2, /* rules exist that bridged frames traverse */
};

struct device_key {
	__u32 ifindex;
	__u32 netns;
};

enum device_flag {
	DEVICE_F_PEER = 0x1,	       /* as NEXTHOP_F_PEER */
	DEVICE_F_PORT = 0x2,	       /* our programs are attached */
	DEVICE_F_MEMBER = 0x4,	       /* port of a bridge or bond, which has the neighbours */
	DEVICE_F_BORROWED_ADDR4 = 0x8, /* addr4 belongs to another device */
	DEVICE_F_BORROWED_ADDR6 = 0x10,
	DEVICE_F_TUNNEL = 0x20,	  /* a tunnel's device: packets sent by it are encapsulated */
	DEVICE_F_NO_QDISC = 0x40, /* as NEXTHOP_F_NO_QDISC; only if XDP is used */
	DEVICE_F_XDP_XMIT = 0x80, /* as NEXTHOP_F_XDP_XMIT; likewise */
	DEVICE_F_UPLINK = 0x100,  /* port of role uplink */
	DEVICE_F_LINK = 0x200,	  /* an end of the link between host and switch */
};

struct device {
	struct addr addr4; /* source for SNAT; all zero: none */
	struct addr addr6;
	__u32 mtu_bytes;
	__u32 flags; /* DEVICE_F_ */
	__u8 mac[6];
	__u16 pad;
	__u8 name[16]; /* padded with zeros */
};
_Static_assert(sizeof(struct device) == 64, "one cache line");
