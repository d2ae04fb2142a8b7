/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_path.h - where packets come in and leave: keys and values of maps. */
#pragma once

#include "types.h"

/* --- where packets leave --- */

#define NEXTHOP_COUNT 16384

#define NEXTHOP_F_PEER	   0x1	/* a veth whose other end is in another namespace */
#define NEXTHOP_F_BRIDGED  0x2	/* frames stay as they are: only those to dmac */
#define NEXTHOP_F_PART	   0x4	/* of a bridge: the kernel's bridge confirms it */
#define NEXTHOP_F_TUNNEL   0x8	/* the device is that of a tunnel: encapsulated for a peer */
#define NEXTHOP_F_UNQUEUED 0x10 /* nobody bounds or orders what leaves by the device */
#define NEXTHOP_F_FRAMES   0x20 /* the same, and its driver takes frames of XDP */

/* A neighbour as the kernel's slow path used it. ifindex 0: not valid, learn anew; the
 * rest stays, for programs that are just about to send by it.
 */
struct nexthop {
	__u32 ifindex;
	__u32 mtu_bytes; /* of the IP packet */
	__u8 dmac[6];
	__u8 smac[6];
	__u32 flags;	    /* NEXTHOP_F_ */
	__u32 checked_tick; /* when the kernel last confirmed it */
	__u16 vid;	    /* VLAN tag that frames leave with; 0: none */
	__u16 peer;	    /* index of ll_peer, of a tunnel */
};
_Static_assert(sizeof(struct nexthop) == 32, "two to a cache line");

struct nexthop_key {
	__u32 ifindex;
	__u32 mtu_bytes;
	__u8 dmac[6];
	__u8 smac[6]; /* zero where frames stay as they are */
	__u16 vid;
	__u8 zone;
	__u8 bridged;
};
_Static_assert(sizeof(struct nexthop_key) == 24, "layout is pinned");

/* --- bridges --- */

#define BRIDGED_WORDS 1024 /* for each zone: a bit for each lower half of an index */

struct station_key {
	__u32 ifindex;
	__u16 vid; /* 0: frames without a tag */
	__u8 zone;
	__u8 pad;
};
_Static_assert(sizeof(struct station_key) == 8, "layout is pinned");

/* Where frames are that come in by a port of a bridge: every port has an entry for
 * vid 0.
 */
struct station {
	__u32 bridge; /* index of the device */
	__u16 domain; /* 0: such frames are refused, or nobody knows */
	__u16 vid;
	__u8 mac[6];   /* of the bridge: frames to it are routed */
	__u16 flags;   /* STATION_F_ */
	__u8 guard[6]; /* STATION_F_GUARDED: the source of frames that come in */
	__u16 pad;
};
_Static_assert(sizeof(struct station) == 24, "layout is pinned");

#define STATION_F_GUARDED 0x1

/* --- guards of ports --- */

#define GUARDED_WORDS 1024 /* as BRIDGED_WORDS */

/* An address that may come in by a device; all zero: the device itself. */
struct guard_key {
	struct addr addr;
	__u32 ifindex;
	__u32 zone;
};
_Static_assert(sizeof(struct guard_key) == 24, "layout is pinned");

#define GUARD_F_OPEN 0x1 /* of the device: its addresses are all entered */

struct guard {
	__u8 mac[6]; /* source of frames that may come in */
	__u16 flags; /* GUARD_F_ */
};

#define STATION_F_TUNNEL 0x2 /* no port of a bridge: what a tunnel's device sends comes in here */

/* Of a bridge of pods, of which no two have the same address: a connection is the same one
 * whether its packets are bridged or routed, so that answers are translated which the bridge
 * carries straight to a pod that had been routed.
 */
#define STATION_F_FLAT 0x4

struct local_key {
	struct addr addr;
	__u32 zone;
};

/* In ll_netfilter. */
#define NETFILTER_F_ROUTED  0x1 /* there are rules that routed packets pass */
#define NETFILTER_F_BRIDGED 0x2 /* there are rules that bridged frames pass */

struct device_key {
	__u32 ifindex;
	__u32 zone;
};

#define DEVICE_F_PEER	  0x1 /* as NEXTHOP_F_PEER */
#define DEVICE_F_PORT	  0x2 /* our programs are attached */
#define DEVICE_F_PART	  0x4 /* of a bridge or bond, which the neighbours belong to */
#define DEVICE_F_LENT4	  0x8 /* addr4 is that of another device: it has none */
#define DEVICE_F_LENT6	  0x10
#define DEVICE_F_TUNNEL	  0x20	/* of a tunnel: what leaves by it is encapsulated */
#define DEVICE_F_UNQUEUED 0x40	/* as NEXTHOP_F_UNQUEUED; only where XDP is asked for */
#define DEVICE_F_FRAMES	  0x80	/* as NEXTHOP_F_FRAMES; likewise */
#define DEVICE_F_UPLINK	  0x100 /* other machines are behind it */

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
