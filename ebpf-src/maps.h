/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* maps.h - every pinned map of the data plane, and its writer ("here": the programs). loxilightd
 * reads the tags of the maps from the BTF of this file.
 */
#pragma once

#include "config.h"
#include "drop.h"
#include "types_conn.h"
#include "types_mirror.h"
#include "types_names.h"
#include "types_nat.h"
#include "types_path.h"
#include "types_policy.h"
#include "types_rules.h"
#include "types_service.h"
#include "types_tunnel.h"

#define MAP(name, map_type, key_type, value_type, entries, flag_bits) \
	struct {                                                      \
		__uint(type, map_type);                               \
		__type(key, key_type);                                \
		__type(value, value_type);                            \
		__uint(max_entries, entries);                         \
		__uint(map_flags, flag_bits);                         \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                  \
	} name SEC(".maps")

/* The size class: loxilightd computes the number of entries from its configuration (mapclass.go).
 * The sizes below are for tests. Without this tag the size is fixed.
 */
#define SIZED_BY(size_class) __attribute__((btf_decl_tag("size:" size_class)))

/* Programs change entries of this map, but only loxilightd creates them. */
#define CREATED_BY_DAEMON __attribute__((btf_decl_tag("creator:daemon")))

/* If loxilightd has to replace maps when it starts, entries that are short-lived, or invalid after
 * each start, are not copied. Connections are copied before all others, since packets may need them
 * at once, and inserted one by one, since their place depends on the size of the table.
 */
#define NOT_COPIED   __attribute__((btf_decl_tag("copy:never")))
#define COPIED_FIRST __attribute__((btf_decl_tag("copy:first")))
#define CONNECTIONS  __attribute__((btf_decl_tag("copy:connections")))

/* An array in segments, which loxilightd creates when they are needed. Its value is an array of one
 * value: otherwise, the compiler does not describe the members of a type that is behind two pointers.
 */
#define SEGMENTED(name, value_type, segment_count, per_segment)    \
	struct {                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);          \
		__uint(key_size, sizeof(__u32));                   \
		__uint(max_entries, segment_count);                \
		__uint(pinning, LIBBPF_PIN_BY_NAME);               \
		__array(                                           \
			values, struct {                           \
				__uint(type, BPF_MAP_TYPE_ARRAY);  \
				__type(key, __u32);                \
				__type(value, value_type[1]);      \
				__uint(max_entries, per_segment);  \
				__uint(map_flags, BPF_F_MMAPABLE); \
			});                                        \
	} name SEC(".maps")

/* The connection table of each family: segments of blocks; see ct_table.h. Written here, expired by
 * loxilightd. The size class determines the size of a segment.
 */
SEGMENTED(ll_ct4, struct ct4_block, CT_SEGMENTS, 128) SIZED_BY("segmentBlocks") CONNECTIONS;
SEGMENTED(ll_ct6, struct ct6_block, CT_SEGMENTS, 128) SIZED_BY("segmentBlocks") CONNECTIONS;

/* The size of the connection table: ct_size of ct_table.h. */
MAP(ll_ct_size, BPF_MAP_TYPE_ARRAY, __u32, struct ct_size, 1, BPF_F_MMAPABLE) COPIED_FIRST;

/* Number of connections by source, and of next hops by device. Incremented here, corrected by
 * loxilightd. A single entry, since a program may use at most 64 maps, and ours come close.
 */
MAP(ll_shares, BPF_MAP_TYPE_ARRAY, __u32, struct shares, 1, BPF_F_MMAPABLE) COPIED_FIRST;

/* Neighbours learnt from the slow path, by index; index 0 is not used. Inserted here, invalidated
 * and freed by loxilightd.
 */
MAP(ll_nexthop, BPF_MAP_TYPE_ARRAY, __u32, struct nexthop, NEXTHOP_COUNT, 0) NOT_COPIED;
MAP(ll_nexthop_id, BPF_MAP_TYPE_HASH, struct nexthop_key, __u32, NEXTHOP_COUNT, BPF_F_NO_PREALLOC)
NOT_COPIED;

/* Free indexes of ll_nexthop. Filled by loxilightd, taken here. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(key_size, 0);
	__type(value, __u32);
	__uint(max_entries, NEXTHOP_COUNT);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} ll_nexthop_free SEC(".maps") NOT_COPIED;

/* All devices of the node. Written by loxilightd. */
MAP(ll_device, BPF_MAP_TYPE_HASH, struct device_key, struct device, 16384, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;

/* Addresses of the node itself, including broadcast addresses. Written by loxilightd. */
MAP(ll_local, BPF_MAP_TYPE_HASH, struct local_key, __u8, 16384, BPF_F_NO_PREALLOC);

/* Bridge ports, by device and VLAN; and a bit for each such device, which saves the look-up for all
 * other devices. Written by loxilightd, the bit last.
 */
MAP(ll_bridge_port, BPF_MAP_TYPE_HASH, struct bridge_port_key, struct bridge_port, 65536,
    BPF_F_NO_PREALLOC)
SIZED_BY("bridgePorts");
MAP(ll_bridged, BPF_MAP_TYPE_ARRAY, __u32, __u64, 2 * BRIDGED_WORDS, 0);

/* When the kernel's bridge was last given a frame of a source MAC, by a hash of the MAC: MACs with the
 * same hash replace each other. Used only here.
 */
MAP(ll_bridge_seen, BPF_MAP_TYPE_ARRAY, __u32, struct bridge_seen, 1 << BRIDGE_SEEN_BITS, 0)
NOT_COPIED;

/* Permitted source addresses of devices with a source guard, and a bit for each device, as in
 * ll_bridged. Written by loxilightd: the bit is set before the programs are attached, and cleared
 * after they are detached. The bits of both netns are followed by a bit for each port of role
 * uplink.
 */
MAP(ll_guard, BPF_MAP_TYPE_HASH, struct guard_key, struct guard, 8192, BPF_F_NO_PREALLOC)
SIZED_BY("guards");
MAP(ll_guarded, BPF_MAP_TYPE_ARRAY, __u32, __u64, 4 * GUARDED_WORDS, 0);

/* A bit for each ifindex that a port has had, since connections may still contain it. Used only by
 * loxilightd.
 */
MAP(ll_port_used, BPF_MAP_TYPE_ARRAY, __u32, __u64, 2 * GUARDED_WORDS, 0);

/* NETFILTER_F_ flags, by netns: netfilter or IPsec may process forwarded packets, so connections
 * that we do not translate take the slow path. Written by loxilightd.
 */
MAP(ll_netfilter, BPF_MAP_TYPE_ARRAY, __u32, __u32, 2, 0);

/* Frontend -> service. Written by loxilightd, after the maps that it refers to. */
MAP(ll_service, BPF_MAP_TYPE_HASH, struct service_key, struct service, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;

/* Services to which other services divert clients, and those clients. Written by loxilightd: the
 * services before the clients, the clients before the frontends.
 */
MAP(ll_service_id, BPF_MAP_TYPE_HASH, struct service_id_key, struct service, 4096,
    BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;
MAP(ll_divert, BPF_MAP_TYPE_LPM_TRIE, struct source_range_key, struct divert, 8192,
    BPF_F_NO_PREALLOC)
SIZED_BY("ranges") CREATED_BY_DAEMON;

/* Frontend addresses that only services use -> SERVICE_ADDR_. Written by loxilightd. */
MAP(ll_service_addr, BPF_MAP_TYPE_HASH, struct addr, __u32, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;

/* Selection tables, in chunks. Written by loxilightd before the service that uses them. */
MAP(ll_slot, BPF_MAP_TYPE_HASH, struct slot_key, struct slot_chunk, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("chunks") CREATED_BY_DAEMON;

/* Backends by id; id 0 is not used. Written by loxilightd before the slots that contain their
 * ids.
 */
SEGMENTED(ll_backend, struct backend_entry, BACKEND_SEGMENTS, BACKENDS_PER_SEGMENT)
SIZED_BY("backends");

/* Counters of ended connections, by backend id, and by service id for deleted backends. Written by
 * loxilightd.
 */
SEGMENTED(ll_backend_traffic, struct traffic, BACKEND_SEGMENTS, BACKENDS_PER_SEGMENT)
SIZED_BY("backends");
MAP(ll_service_traffic, BPF_MAP_TYPE_HASH, __u32, struct traffic, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;

/* Names of services, by id. Written by loxilightd. */
MAP(ll_service_name, BPF_MAP_TYPE_HASH, __u32, struct service_name, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;

/* Next round-robin slot, by id of the selection table modulo the size of this map. Written here. */
MAP(ll_turn, BPF_MAP_TYPE_ARRAY, __u32, __u32, 4096, 0);

/* (client, service) -> backend. Written here; the oldest are evicted. */
MAP(ll_affinity, BPF_MAP_TYPE_LRU_HASH, struct affinity_key, struct affinity, 8192, 0)
SIZED_BY("affinity");

/* Permitted clients -> their family, 4 or 6, so that ::/0 does not permit IPv4 clients. Written by
 * loxilightd.
 */
MAP(ll_source_range, BPF_MAP_TYPE_LPM_TRIE, struct source_range_key, __u8, 8192, BPF_F_NO_PREALLOC)
SIZED_BY("ranges") CREATED_BY_DAEMON;

/* Events that are not counted in connections, by service id. Created by loxilightd, incremented
 * here.
 */
MAP(ll_service_stats, BPF_MAP_TYPE_PERCPU_HASH, __u32, struct service_stats, 4096,
    BPF_F_NO_PREALLOC)
SIZED_BY("services") CREATED_BY_DAEMON;

/* Ports of fragmented packets. Written here. */
MAP(ll_fragment, BPF_MAP_TYPE_LRU_HASH, struct fragment_key, struct fragment, 16384, 0)
SIZED_BY("remotes");

/* The number of the image of each rule set, and the images: an image is in force once ll_rules
 * contains its number. Images of other sizes are in maps with other names; images of other format
 * versions have another RULES_MAGIC. Written by loxilightd.
 */
MAP(ll_rules, BPF_MAP_TYPE_ARRAY, __u32, struct rules, RULE_SET_COUNT, 0);

#define IMAGES(name, image_type)                                        \
	struct {                                                        \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);               \
		__uint(key_size, sizeof(__u32));                        \
		__uint(max_entries, RULE_SET_COUNT);                    \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                    \
		__array(                                                \
			values, struct {                                \
				__uint(type, BPF_MAP_TYPE_ARRAY);       \
				__type(key, __u32);                     \
				__uint(value_size, sizeof(image_type)); \
				__uint(max_entries, 1);                 \
				__uint(map_flags, BPF_F_MMAPABLE);      \
			});                                             \
	} name SEC(".maps")

IMAGES(ll_image_128k, struct image_128k);
IMAGES(ll_image_1m, struct image_1m);
IMAGES(ll_image_8m, struct image_8m);
IMAGES(ll_image_64m, struct image_64m);

/* Network policies: the addresses of Entities, and the ports of Endpoints. Written by loxilightd,
 * which changes only the side that is not in force: see types_policy.h.
 */
MAP(ll_policy_addr, BPF_MAP_TYPE_HASH, struct addr, struct policy_addr, 16384, BPF_F_NO_PREALLOC)
SIZED_BY("entities") CREATED_BY_DAEMON;
MAP(ll_policy_port, BPF_MAP_TYPE_HASH, __u32, struct policy_port, 16384, BPF_F_NO_PREALLOC)
SIZED_BY("ports") CREATED_BY_DAEMON;

/* Decisions of the rules of network policies, by number; created by loxilightd, counted here. And what
 * these numbers stand for, written by loxilightd.
 */
MAP(ll_policy_hits, BPF_MAP_TYPE_PERCPU_HASH, __u32, struct policy_hits, 32768, BPF_F_NO_PREALLOC)
SIZED_BY("rules") CREATED_BY_DAEMON;
MAP(ll_policy_rule, BPF_MAP_TYPE_HASH, __u32, struct policy_rule, 32768, BPF_F_NO_PREALLOC)
SIZED_BY("rules") CREATED_BY_DAEMON;

/* Names in network policies -> their numbers, and the counters of each number, twice as many as
 * policies may have, since old and new names exist together for a moment; and the DNS servers
 * from whose responses their addresses are learnt. Written by loxilightd; the counters are
 * incremented here.
 */
MAP(ll_name, BPF_MAP_TYPE_HASH, struct name_text, struct name_ids, 8192, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;
MAP(ll_name_stats, BPF_MAP_TYPE_HASH, __u32, struct name_stats, 8192, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;
MAP(ll_resolver, BPF_MAP_TYPE_HASH, struct resolver_key, struct resolver, 4096, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;

/* Addresses of names. Inserted here; deleted by ll_names_sweep, which loxilightd runs, and here
 * if there is no room.
 */
MAP(ll_learned, BPF_MAP_TYPE_HASH, struct learned_key, struct learned, 100000, BPF_F_NO_PREALLOC)
SIZED_BY("learned");

/* Positions in TCP connections to DNS servers, and responses that arrive in several packets. Written
 * here.
 */
MAP(ll_dns_stream, BPF_MAP_TYPE_LRU_HASH, struct dns_flow, struct dns_stream, 2048, 0) NOT_COPIED;
MAP(ll_dns_part, BPF_MAP_TYPE_ARRAY, __u32, struct dns_part, 64, 0) NOT_COPIED;

/* Nonzero while a shadow program is attached to any hook (config_shadow). Written by loxilightd. A
 * single entry.
 */
MAP(ll_shadow, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0);

/* Incremented by loxilightd after rules, Services, or the policies of a port have changed: connections
 * that were allowed before are evaluated again. The epochs of ports are found by the lower bits of
 * the ifindex, so a port may be evaluated again for another one.
 */
MAP(ll_epoch, BPF_MAP_TYPE_ARRAY, __u32, struct epoch, EPOCH_COUNT, 0);

/* Hits of rules, by rule id; created by loxilightd, incremented here. And the names of rules,
 * written by loxilightd.
 */
MAP(ll_rule_hits, BPF_MAP_TYPE_PERCPU_HASH, __u32, struct rule_hits, 32768, BPF_F_NO_PREALLOC)
SIZED_BY("rules") CREATED_BY_DAEMON;
MAP(ll_rule_name, BPF_MAP_TYPE_HASH, __u32, struct rule_name, 32768, BPF_F_NO_PREALLOC)
SIZED_BY("rules") CREATED_BY_DAEMON;

/* Source ports to assign, shuffled, from index 1 on; index 0 contains their number. Written by
 * loxilightd.
 */
MAP(ll_snat_ports, BPF_MAP_TYPE_ARRAY, __u32, __u16, SNAT_PORT_MAX, 0);

/* Index of the next source port to try towards a target. Written here. */
MAP(ll_snat_next, BPF_MAP_TYPE_LRU_HASH, struct snat_target, __u32, 16384, 0) SIZED_BY("remotes");

/* A bit for each port that sockets of the node, or services, use; then a bit for each port to which
 * services or NAT rules lead. Written by loxilightd.
 */
#define PORT_WORDS 1024
MAP(ll_port_taken, BPF_MAP_TYPE_ARRAY, __u32, __u64, 2 * PORT_WORDS, 0);

/* NAT rules; the addresses to which they translate; and, for rules that translate prefix to prefix,
 * the counterpart of each prefix. Written by loxilightd before rule sets that contain these rules
 * are in force.
 */
MAP(ll_nat_rule, BPF_MAP_TYPE_HASH, __u32, struct nat_rule, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("natRules");
MAP(ll_nat_pool, BPF_MAP_TYPE_HASH, __u32, struct nat_prefix, 8192, BPF_F_NO_PREALLOC)
SIZED_BY("natPrefixes");
MAP(ll_nat_pair, BPF_MAP_TYPE_LPM_TRIE, struct nat_pair_key, struct nat_prefix, 8192,
    BPF_F_NO_PREALLOC)
SIZED_BY("natPrefixes");

/* Names of NATs, and events that are not counted in connections, by id. Written by loxilightd; the
 * counters are incremented here.
 */
MAP(ll_nat_name, BPF_MAP_TYPE_HASH, __u32, struct nat_name, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("nats");
MAP(ll_nat_stats, BPF_MAP_TYPE_PERCPU_HASH, __u32, struct nat_stats, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("nats");

/* Counters of ended translated connections, by NAT id. Written by loxilightd. */
MAP(ll_nat_traffic, BPF_MAP_TYPE_HASH, __u32, struct traffic, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("nats") CREATED_BY_DAEMON;

/* Announced addresses, which no device has. Written by loxilightd. */
MAP(ll_announced, BPF_MAP_TYPE_LPM_TRIE, struct announce_key, struct announced, 8192,
    BPF_F_NO_PREALLOC)
SIZED_BY("natPrefixes");

/* Endpoint-independent mappings, by inner and by outer address. Inserted here, expired by
 * loxilightd.
 */
MAP(ll_mapping, BPF_MAP_TYPE_HASH, struct mapping_key, struct mapping, 8192, BPF_F_NO_PREALLOC)
SIZED_BY("mappings");
MAP(ll_mapping_outer, BPF_MAP_TYPE_HASH, struct mapping_key, struct mapping, 8192,
    BPF_F_NO_PREALLOC)
SIZED_BY("mappings");

/* Port blocks of inner addresses, and the owner of each block. Inserted here, expired by
 * loxilightd.
 */
MAP(ll_block, BPF_MAP_TYPE_HASH, struct block_key, struct block, 4096, BPF_F_NO_PREALLOC)
SIZED_BY("blocks");
MAP(ll_block_owner, BPF_MAP_TYPE_HASH, struct block_owner_key, struct block_key, 4096,
    BPF_F_NO_PREALLOC)
SIZED_BY("blocks");

/* The first check for tunnel packets; the tunnels; and the peers: by index, by underlay address
 * (tunnel_id 0: of any tunnel), and by the prefixes behind them. Written by loxilightd.
 */
MAP(ll_tunnel_gate, BPF_MAP_TYPE_ARRAY, __u32, struct tunnel_gate, 1, 0);
MAP(ll_tunnel, BPF_MAP_TYPE_HASH, struct tunnel_key, struct tunnel, 8192, BPF_F_NO_PREALLOC);
MAP(ll_peer, BPF_MAP_TYPE_ARRAY, __u32, struct peer, PEER_COUNT, 0) SIZED_BY("peers");
MAP(ll_peer_id, BPF_MAP_TYPE_HASH, struct peer_key, __u32, 4 * PEER_COUNT, BPF_F_NO_PREALLOC)
SIZED_BY("peerAddresses");
MAP(ll_peer_prefix, BPF_MAP_TYPE_LPM_TRIE, struct peer_prefix_key, __u32, 8 * PEER_COUNT,
    BPF_F_NO_PREALLOC)
SIZED_BY("peerPrefixes");

/* Names of tunnels and peers, by id and index. Written by loxilightd. */
MAP(ll_tunnel_name, BPF_MAP_TYPE_HASH, __u32, struct peer_name, 256, BPF_F_NO_PREALLOC);
MAP(ll_peer_name, BPF_MAP_TYPE_HASH, __u32, struct peer_name, PEER_COUNT, BPF_F_NO_PREALLOC)
SIZED_BY("peers");

/* The next hop to each peer in the underlay: an index into ll_nexthop. Learnt here. */
MAP(ll_peer_nexthop, BPF_MAP_TYPE_ARRAY, __u32, __u32, PEER_COUNT, 0) SIZED_BY("peers");

/* The path MTU to each peer. Written here; deleted by loxilightd. */
MAP(ll_peer_pmtu, BPF_MAP_TYPE_ARRAY, __u32, struct peer_pmtu, PEER_COUNT, 0) SIZED_BY("peers");

/* Counters of peers. Incremented here, reset by loxilightd when the index is reused. */
MAP(ll_peer_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct peer_stats, PEER_COUNT, 0)
SIZED_BY("peers");

/* Mirrors by slot, their names and counters; and the ports on which copies are taken. Written by
 * loxilightd, the ports last; the counters are incremented here, and reset by loxilightd when the slot
 * is reused. An entry of a hash is replaced as a whole.
 */
MAP(ll_mirror, BPF_MAP_TYPE_HASH, __u32, struct mirror, MIRROR_COUNT, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;
MAP(ll_mirror_name, BPF_MAP_TYPE_HASH, __u32, struct mirror_name, MIRROR_COUNT, BPF_F_NO_PREALLOC)
CREATED_BY_DAEMON;
MAP(ll_mirror_port, BPF_MAP_TYPE_HASH, struct device_key, struct mirror_port, 16384,
    BPF_F_NO_PREALLOC)
SIZED_BY("ports") CREATED_BY_DAEMON;
MAP(ll_mirror_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct mirror_stats, MIRROR_COUNT, 0);

/* Packets by drop_reason, and by verdict_count. Incremented here, read by loxilightd. */
MAP(ll_drops, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, DROP_MAX, 0);
MAP(ll_verdicts, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64, VERDICT_MAX, 0);

/* Drops of each port. Incremented here. */
MAP(ll_port_drops, BPF_MAP_TYPE_PERCPU_HASH, struct port_drop_key, __u64, 16384, BPF_F_NO_PREALLOC);

/* Samples for the events of loxilightd, and rate limits. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} ll_samples SEC(".maps") NOT_COPIED;

/* One bucket for each rate limit. Written here. */
struct rate_bucket {
	__u64 tick;
	__u64 used; /* RATE_CLOCK: the time at which tick was read, in jiffies */
};
enum rate_limit {
	RATE_ICMP,
	RATE_SAMPLE_DROP,
	RATE_SAMPLE_OPENED,
	RATE_RESET,
	RATE_CLOCK, /* the current tick, see clock.h */
	RATE_SAMPLE_LOGGED,
	RATE_MAX,
};
MAP(ll_rate, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct rate_bucket, RATE_MAX, 0) NOT_COPIED;
