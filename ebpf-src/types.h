/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types.h - map keys and values, shared with Go by bpf2go.
 *
 * Fixed width, natural alignment, padding spelled out and zeroed; no bitfields,
 * no unions. __be16 and __be32 are as on the wire, __u16 and __u32 host order.
 * These layouts are pinned. The next version copies entries field by name: a name
 * is not given to another meaning, enums get new values at their end, and what
 * fields cannot tell is a new LAYOUT_VERSION.
 */
#pragma once

#include <linux/types.h>

#include "drop.h"

#define LAYOUT_VERSION 1

/* Time in the maps is in ticks of 2^27 ns (134 ms) of CLOCK_MONOTONIC. */
#define TICK_SHIFT 27

/* IPv4 addresses in 16-byte fields are ::ffff:a.b.c.d. */
struct addr {
	__be32 word[4];
};

/* --- connections: both directions are found by their own tuple --- */

struct ct4_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport; /* ICMP echo: identifier in both */
	__be16 dport;
	__u8 proto;   /* IPPROTO_ */
	__u8 zone;    /* 0: host, 1: switch namespace */
	__u16 domain; /* of bridged frames that of their bridge and VLAN; else 0 */
};
_Static_assert(sizeof(struct ct4_key) == 16, "layout is pinned");

struct ct6_key {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 zone;
	__u16 domain;
};
_Static_assert(sizeof(struct ct6_key) == 40, "layout is pinned");

/* States of a connection; both entries of it have the same. */
enum ct_state {
	CT_NEW,	     /* TCP: SYN seen; others: nothing answered yet */
	CT_ANSWERED, /* TCP: SYN-ACK seen */
	CT_ESTABLISHED,
	CT_FIN,	      /* one side has closed */
	CT_TIME_WAIT, /* both sides have closed */
	CT_CLOSED,    /* reset; traffic that goes on revives it */
	CT_STATE_MAX,
};

/* ct_meta.flags */
#define CT_F_REPLY     0x01 /* this entry is the reply direction */
#define CT_F_DNAT      0x02
#define CT_F_SNAT      0x04
#define CT_F_LOCAL     0x08  /* this direction ends at, or begins at, the node itself */
#define CT_F_FIN       0x10  /* a FIN was seen in this direction */
#define CT_F_FROM_NODE 0x20  /* the client is the node itself */
#define CT_F_RST       0x40  /* a reset was seen in this direction */
#define CT_F_DENIED    0x80  /* by rules that changed: asked about again each time */
#define CT_F_SNAT_LATE 0x100 /* on the slow path the egress hook translates the source */
#define CT_F_NAT_ASKED 0x200 /* the rules of translation were asked about the source */
#define CT_F_DEVICE    0x400 /* the source is the address of a device: ends with it */

/* Why the kernel forwards what comes in by an entry: the upper bits of ct_meta.flags. */
enum slow_why {
	WHY_UNKNOWN,   /* nobody asked yet, or it leaves by no port of ours */
	WHY_NETFILTER, /* netfilter has rules */
	WHY_MARK,      /* somebody has set a mark */
	WHY_TAG,       /* its VLAN tag is only the kernel's to handle */
	WHY_ONE_WAY,   /* a bridge sends it to a station that was not heard there */
	WHY_FULL,      /* no room for another next hop */
	WHY_ONE_WAY_1, /* as WHY_ONE_WAY, which has the packets of even numbers, of odd ones */
	WHY_MAX,
};

#define CT_WHY_SHIFT 12 /* in ct_meta.flags */
#define CT_WHY_MASK  0xf000

/* The part of an entry that both families have. */
struct ct_meta {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u32 last_seen_tick;
	__u32 created_tick;
	__u16 nexthop; /* index into nexthops; 0: not learnt, the kernel forwards */
	__u16 in_port; /* lower half of the index of the device that it comes in by; 0: unknown */
	__u32 service_id;
	__u32 backend_id;
	__u32 tcp_ack;	  /* host order: highest acknowledgement sent in this direction */
	__u16 tcp_window; /* unscaled, with that acknowledgement */
	__u8 tcp_scale;	  /* shift of tcp_window */
	__u8 state;	  /* enum ct_state */
	__u16 flags;	  /* CT_F_ */
	__u16 nat_id;	  /* what translates it; of two, of the answers the source's; 0: none */
};

/* An entry's key is the tuple of the packets that come in, its value the tuple
 * they leave with. With a 16-byte key an element of a preallocated hash is 128
 * bytes, two cache lines: the header and the key, and this.
 */
struct ct4_val {
	struct ct_meta meta;
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 pad;
};
_Static_assert(sizeof(struct ct4_val) == 64, "one cache line");

struct ct6_val {
	struct ct_meta meta;
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 pad;
};
_Static_assert(sizeof(struct ct6_val) == 88, "layout is pinned");

/* --- where packets leave --- */

#define NEXTHOP_COUNT 16384

#define NEXTHOP_F_PEER	  0x1 /* a veth whose other end is in another namespace */
#define NEXTHOP_F_BRIDGED 0x2 /* frames stay as they are: only those to dmac */
#define NEXTHOP_F_PART	  0x4 /* of a bridge: the kernel's bridge confirms it */
#define NEXTHOP_F_TUNNEL  0x8 /* the device is that of a tunnel: encapsulated for a peer */

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

#define DEVICE_F_PEER	0x1 /* as NEXTHOP_F_PEER */
#define DEVICE_F_PORT	0x2 /* our programs are attached */
#define DEVICE_F_PART	0x4 /* of a bridge or bond, which the neighbours belong to */
#define DEVICE_F_LENT4	0x8 /* addr4 is that of another device: it has none */
#define DEVICE_F_LENT6	0x10
#define DEVICE_F_TUNNEL 0x20 /* of a tunnel: what leaves by it is encapsulated */

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

/* --- services --- */

struct service_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct service_key) == 20, "layout is pinned");

enum algorithm {
	ALG_MAGLEV,
	ALG_RANDOM,
	ALG_ROUND_ROBIN,
	ALG_LEAST_CONNECTIONS,
	ALG_SOURCE_HASH,
};

enum source_mode {
	SOURCE_AUTO,
	SOURCE_KEEP,
	SOURCE_SNAT,
};

struct service {
	__u32 id;
	__u32 table_id;	      /* of the selection table */
	__u32 slot_count;     /* of the selection table; 0: no usable backend */
	__u32 affinity_ticks; /* client affinity; 0 turns it off */
	enum algorithm algorithm;
	enum source_mode source;
	__u32 range_set_id; /* only clients in these source ranges; 0: all */
};
_Static_assert(sizeof(struct service) == 28, "layout is pinned");

#define SLOTS_PER_CHUNK 64

struct slot_key {
	__u32 table_id;
	__u32 chunk;
};

struct slot_chunk {
	__u32 backend_id[SLOTS_PER_CHUNK];
};

#define BACKEND_F_USABLE 0x1 /* may get new connections by affinity */

struct backend {
	struct addr addr;
	__be16 port;
	__u16 flags;	  /* BACKEND_F_ */
	__u32 service_id; /* 0: no backend here */
	__u32 weight;
	__u32 pad;
};
_Static_assert(sizeof(struct backend) == 32, "layout is pinned");

struct affinity_key {
	struct addr client;
	__u32 service_id;
};

struct affinity {
	__u32 backend_id;
	__u32 used_tick;
};

struct source_range_key {
	__u32 prefix_len; /* bits, 32 of set_id included */
	__u32 set_id;
	struct addr addr;
};

/* Counters of a service, per CPU, for what is no packet of a tracked connection. */
struct service_stats {
	__u64 connection_count;
	__u64 drop_count[4]; /* by enum service_drop */
};

enum service_drop {
	SERVICE_DROP_NO_BACKEND,
	SERVICE_DROP_SOURCE_RANGE,
	SERVICE_DROP_NO_PORT,
	SERVICE_DROP_OTHER,
};

/* What connections carried that are gone; both directions. */
struct traffic {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
};

#define SERVICE_NAME_MAX 256

/* For loxilightd, which finds its services again by it. */
struct service_name {
	char name[SERVICE_NAME_MAX]; /* padded with zeros */
};

struct port_drop_key {
	__u32 ifindex;
	__u32 zone;
	enum drop_reason reason;
};

/* --- fragments --- */

struct fragment_key {
	struct addr saddr;
	struct addr daddr;
	__be32 id;
	__u8 proto;
	__u8 zone;
	__u16 pad;
};

struct fragment {
	__be16 sport;
	__be16 dport;
	__u32 seen_tick;
};

/* --- source ports --- */

#define SNAT_PORT_MAX 65536

/* Ports are given out towards each target one after the other. */
struct snat_target {
	struct addr saddr;
	struct addr daddr;
	__be16 dport;
	__u8 proto;
	__u8 zone;
};

/* --- rules --- */

/* The sets of rules; each is in force as a whole. */
enum rule_set {
	RULES_FIREWALL,
	RULES_DNAT,
	RULES_SNAT,
	RULE_SET_MAX,
};

#define RULE_SET_COUNT 8 /* with room for more */

/* Which image is a set's. */
struct rules {
	__u32 image; /* in which of the maps ll_image_ it is, from 1 on; 0: there are no rules */
	__u32 flags; /* RULES_F_ */
};

#define RULES_F_OUT	0x1 /* a rule names the device that packets leave by */
#define RULES_F_PENDING 0x2 /* the epoch has not been raised since it changed; for loxilightd */

/* rule_record.action of the firewall, and flags. */
#define ACTION_ALLOW  0
#define ACTION_DENY   1
#define ACTION_REJECT 2

#define RULE_F_STATELESS 0x1 /* the answers to what it allows are asked about, too */
#define RULE_F_LOG	 0x2

/* What was allowed by the rules of another epoch is asked about again: each direction of
 * a connection that was last seen in changed_tick, or before.
 */
struct epoch {
	__u32 count; /* of changes so far */
	__u32 changed_tick;
};

struct rule_record {
	__u32 id; /* of ll_rule_name; 0: nothing is counted */
	__u8 action;
	__u8 flags;
	__u16 pad;
	__u32 rank; /* of two rules that match the one of the lower rank decides */
};

/* The fields of packets that rules match, in the order in which they are folded, and
 * the tries that they are looked up in: as in datapath/classify.
 */
enum rules_field {
	FIELD_HOOK,
	FIELD_DSCP,
	FIELD_TCP_FLAGS,
	FIELD_VLAN,
	FIELD_IN,
	FIELD_OUT,
	FIELD_SOURCE_PORT,
	FIELD_LAYER4,
	FIELD_SOURCE,
	FIELD_DESTINATION,
	FIELD_COUNT,
};

enum rules_root {
	ROOT_HOOK,
	ROOT_DSCP,
	ROOT_TCP_FLAGS,
	ROOT_NO_TCP_FLAGS,
	ROOT_VLAN,
	ROOT_IN,
	ROOT_OUT,
	ROOT_SOURCE_PORT,
	ROOT_NO_SOURCE_PORT,
	ROOT_LAYER4,
	ROOT_NO_LAYER4,
	ROOT_SOURCE4,
	ROOT_SOURCE6,
	ROOT_DESTINATION4,
	ROOT_DESTINATION6,
	ROOT_COUNT,
};

#define AGGREGATE_WORDS 5

/* The beginning of an image. Places are in bytes from there. */
struct rules_header {
	__u32 magic;
	__u32 rule_count;
	__u32 size_bytes;
	__u32 rules;   /* where struct rule_record are */
	__u32 chunks;  /* where in a vector its chunks are: behind the aggregate */
	__u32 direct;  /* 1: the only table has the place of the rule in the vectors, plus one */
	__u32 regions; /* for each word, where those behind its region are; 0: there are none */
	__u32 pad;
	__u64 words[AGGREGATE_WORDS]; /* a bit for each word of a vector */
	__u32 root[16];		      /* by enum rules_root: entries of tries */
	__u32 table[12]; /* by enum rules_field: where, by the sum of the leaves so far; 0: go on */
};
_Static_assert(ROOT_COUNT <= 16 && FIELD_COUNT <= 12, "room for all");

/* An image, with room behind it for what is read of its last bytes. */
#define IMAGE_SLACK 4096

struct image_128k {
	__u8 bytes[(1 << 17) + IMAGE_SLACK];
};
struct image_1m {
	__u8 bytes[(1 << 20) + IMAGE_SLACK];
};
struct image_8m {
	__u8 bytes[(1 << 23) + IMAGE_SLACK];
};
struct image_64m {
	__u8 bytes[(1 << 26) + IMAGE_SLACK];
};

#define HOOK_FORWARD 1
#define HOOK_INPUT   2
#define HOOK_OUTPUT  4

/* classify_key.known */
#define KNOWN_LAYER4	0x1 /* dport */
#define KNOWN_SPORT	0x2 /* sport: of TCP, UDP and SCTP */
#define KNOWN_TCP_FLAGS 0x4

/* What rules are asked about, and what they say. */
struct classify_key {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport; /* ICMP and ICMPv6: type, then code */
	__u8 proto;
	__u8 family; /* 4 or 6 */
	__u8 known;  /* KNOWN_ */
	__u8 tcp_flags;
	__u8 dscp;
	__u8 hook;  /* HOOK_ */
	__u16 vlan; /* 0: none */
	__u32 in_ifindex;
	__u32 out_ifindex; /* 0: none, or not known */
	struct rule_record rule;
	/* Of the search; not on the stack, where the verifier would follow each of them. */
	__u32 sum; /* of the leaves since the last table */
	__u32 vector_count;
	__u64 words[AGGREGATE_WORDS]; /* that all vectors may have a bit in */
	__u32 vector[16];	      /* where they are */
	__s32 found;		      /* place of the best rule so far; -1: none */
	__u32 pad;
};
_Static_assert(sizeof(struct classify_key) == 184, "no holes");

struct rule_hits {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
	__u64 connection_count;
};

#define RULE_NAME_MAX 256

/* For loxilightd, which finds the ids of its rules again by it. */
struct rule_name {
	__u8 name[RULE_NAME_MAX]; /* padded with zeros */
};

/* --- translation --- */

enum nat_type {
	NAT_SNAT,
	NAT_DNAT,
	NAT_MASQUERADE,
};

#define NAT_F_ONE_TO_ONE 0x1 /* prefix to prefix, by ll_nat_pair; ports stay */
#define NAT_F_MAPPING	 0x2 /* one outer port for an inner one, whatever the remote */
#define NAT_F_OPEN	 0x4 /* strangers may use a mapping */
#define NAT_F_EACH_PORT	 0x8 /* DNAT: port by port from match_port on to range_first[0] on */

#define NAT_RANGES     8
#define NAT_PORT_TRIES 64 /* ports looked at in all, or in each block */
#define NAT_BLOCKS_MAX 4  /* of one inner address */

/* What a rule of translation does, by four times its id, and the two lowest bits of the
 * flags of its record in the classifier: 1 changes with the rule, 2 is not used.
 */
struct nat_rule {
	__u16 id;
	__u8 type;	     /* enum nat_type */
	__u8 flags;	     /* NAT_F_ */
	__u32 pool_first[2]; /* of ll_nat_pool, by family, IPv4 first */
	__u32 pool_count[2];
	__u32 port_count;  /* of all ranges; DNAT, 0: ports stay */
	__u32 port_stride; /* has no divisor in common with port_count */
	__u16 block_size;  /* ports, all ranges are multiples of it; 0: no blocks */
	__u16 match_port;  /* host order */
	__u16 range_first[NAT_RANGES];
	__u16 range_size[NAT_RANGES];
};
_Static_assert(sizeof(struct nat_rule) == 64, "one cache line");

/* What is translated to: addr, and from the address that is translated or from a hash
 * the bits that host has.
 */
struct nat_prefix {
	struct addr addr;
	struct addr host;
};

struct nat_pair_key {
	__u32 prefix_len; /* bits, 32 of slot included */
	__u32 slot;	  /* key of ll_nat_rule */
	struct addr addr;
};

/* An address and port, inner or outer, that is mapped whatever the remote. */
struct mapping_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 zone;
	__u32 nat_id; /* of an inner one, and above it a hash of the outer address; else 0 */
};
_Static_assert(sizeof(struct mapping_key) == 24, "layout is pinned");

struct mapping {
	struct addr addr; /* the other side */
	__be16 port;
	__u16 nat_id;
	__u32 flags; /* NAT_F_OPEN */
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct mapping) == 32, "layout is pinned");

/* Ports of an outer address that one inner address has. */
struct block_key {
	struct addr inner;
	__u16 nat_id;
	__u8 nth;
	__u8 zone;
};

struct block {
	struct addr outer;
	__u16 first; /* host order */
	__u16 size;
	__u32 next; /* offset of the port that is tried next */
	__u32 created_tick;
	__u32 used_tick;
};
_Static_assert(sizeof(struct block) == 32, "layout is pinned");

struct block_owner_key {
	struct addr outer;
	__u16 first;
	__u8 zone;
	__u8 pad;
};

/* Addresses that are the node's without being on a device, of its neighbours by the device
 * that has their network, and for all of them by ifindex 0; the longest prefix decides.
 */
struct announce_key {
	__u32 prefix_len; /* bits, 64 of ifindex and zone included */
	__u32 ifindex;
	__u32 zone;
	struct addr addr;
};
_Static_assert(sizeof(struct announce_key) == 28, "layout is pinned");

#define ANNOUNCED_F_NOT 0x1 /* somebody else's, amid others */

struct announced {
	__u32 flags;  /* ANNOUNCED_F_ */
	__u32 nat_id; /* whose it is; 0: no translation's */
};

/* Counters of translation, per CPU. */
struct nat_stats {
	__u64 connection_count;
	__u64 drop_count[4];	   /* by enum nat_drop */
	__u64 reused_packet_count; /* of connections whose tuple or port a new one has taken */
	__u64 reused_byte_count;
};

enum nat_drop {
	NAT_DROP_NO_PORT,
	NAT_DROP_NO_ADDRESS,
	NAT_DROP_NO_CONNECTION,
	NAT_DROP_OTHER,
};

#define NAT_NAME_MAX 256

/* For loxilightd, which finds its ids again by it. */
struct nat_name {
	char name[NAT_NAME_MAX]; /* padded with zeros */
};

/* --- tunnels --- */

#define PEER_COUNT	  16384 /* index 0 is none */
#define TUNNEL_PORTS	  8
#define TUNNEL_HEADER_MAX 96

/* All inner Ethernet headers are from 02:4c:4c:00:00:02 to 02:4c:4c:00:00:01. */
enum tunnel_type {
	TUNNEL_NONE,
	TUNNEL_VXLAN,  /* RFC 7348 */
	TUNNEL_GENEVE, /* RFC 8926, sent without options */
	TUNNEL_GRE,    /* RFC 2784, RFC 2890: the key is the VNI, where there is one */
};

/* What incoming packets are looked at for, before anything else. All zero: nothing. */
struct tunnel_gate {
	__be16 port[TUNNEL_PORTS]; /* of UDP; 0: none */
	__u32 gre;
};

struct tunnel_key {
	struct addr local;
	__u32 vni;   /* GRE without a key: 0 */
	__be16 port; /* GRE: 0 */
	__u8 proto;  /* of the outer packet */
	__u8 keyed;  /* GRE: it has a key */
};
_Static_assert(sizeof(struct tunnel_key) == 24, "layout is pinned");

struct tunnel {
	__u32 id; /* from 1 on */
	enum tunnel_type type;
};

struct peer_key {
	struct addr underlay;
	__u32 tunnel_id;
};

struct peer_prefix_key {
	__u32 prefix_len; /* bits, of addr */
	struct addr addr;
};

/* A node behind a tunnel. What the header has of each packet is zero in it: lengths,
 * source port, class of traffic, the type of what is inside. Its sum is without them.
 */
struct peer {
	struct addr local; /* of the underlay, as remote */
	struct addr remote;
	__u32 tunnel_id; /* 0: no peer here */
	enum tunnel_type type;
	__u32 device_ifindex; /* of the tunnel, in the switch */
	__u32 crossing_ifindex; /* in the switch: leads to the host's namespace; 0: it is the host's */
	__u32 return_ifindex; /* in the host's namespace: its other end */
	__u32 out_ifindex;    /* by which the host reaches it, where it does not forward */
	__u32 header_len;     /* bytes, Ethernet included */
	__u32 pad;
	__u8 header[TUNNEL_HEADER_MAX];
};
_Static_assert(sizeof(struct peer) == 160, "no holes");

#define PEER_NAME_MAX 256

/* For loxilightd, which finds its tunnels and peers again by it. */
struct peer_name {
	__u8 name[PEER_NAME_MAX]; /* padded with zeros */
	__u8 device[16];	  /* of a tunnel, likewise */
};

/* Counters of a peer, per CPU. Bytes are those of inner packets, with an Ethernet header. */
struct peer_stats {
	__u64 sent_packet_count;
	__u64 sent_byte_count;
	__u64 received_packet_count;
	__u64 received_byte_count;
	__u64 drop_count;
};

/* --- samples --- */

enum sample_type {
	SAMPLE_DROP,
	SAMPLE_OPENED,
	SAMPLE_ALLOWED, /* by a rule that is to be logged */
};

struct sample {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 type;   /* enum sample_type */
	__u8 reason; /* enum drop_reason */
	__u8 egress; /* 1: seen on the egress hook */
	__u32 ifindex;
	__u32 zone;
	__u32 service_id;
	__u32 len_bytes; /* of the frame */
	__u32 rule_id;
	__u32 nat_id; /* 0: none */
};
_Static_assert(sizeof(struct sample) == 64, "layout is pinned");
