/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_service.h - keys and values of the maps of services. */
#pragma once

#include "types.h"

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
	__u32 member_count;   /* of the list in the selection table; 0: no list */
	__u32 affinity_ticks; /* client affinity; 0: off */
	enum algorithm algorithm;
	enum source_mode source;
	__u32 range_set_id;    /* the permitted source ranges; 0: all clients */
	__u32 divert_set_id;   /* clients that are diverted to another service; 0: none */
	__u32 flags;	       /* SERVICE_F_ */
	__u16 idle[IDLE_ECHO]; /* by protocol, as in struct ct_more */
	__u16 pad;
	/* Used only by loxilightd: checksums of the selection table, and of all that determines it. */
	__u32 table_sum;
	__u32 pad2;
	__u64 table_source;
};
_Static_assert(sizeof(struct service) == 64, "layout is pinned");

enum service_flag {
	SERVICE_F_SILENT = 0x1, /* without a backend, new connections are dropped silently */
};

/* A service to which other services divert clients, by its id. */
struct service_id_key {
	__u32 id;
	__u32 family; /* 4 or 6 */
};

/* Treatment of packets to the address of a frontend on ports that no service uses. */
enum service_addr_flag {
	SERVICE_ADDR_DROP = 0x1,
	SERVICE_ADDR_REJECT = 0x2,
};

/* A selection table consists of words, in chunks. Without a list, each word is a slot: a backend id.
 * Otherwise it begins with a list of backend ids, its members, and each slot after the list is the
 * index of a member: a byte, or two bytes if the list has more than MEMBERS_PER_BYTE members. A chunk
 * and what the kernel adds to it take 512 bytes.
 */
#define WORDS_PER_CHUNK	 112
#define MEMBERS_PER_BYTE 256

struct slot_key {
	__u32 table_id;
	__u32 chunk;
};

struct slot_chunk {
	__u32 word[WORDS_PER_CHUNK];
};

enum backend_flag {
	BACKEND_F_USABLE = 0x1, /* may get new connections by affinity */
};

struct backend {
	struct addr addr;
	__be16 port;
	__u16 flags;	  /* BACKEND_F_ */
	__u32 service_id; /* 0: no such backend */
	__u32 weight;
};
_Static_assert(sizeof(struct backend) == 28, "layout is pinned");

/* Counters of ended connections, both directions. */
struct traffic {
	__u64 packet_count;
	__u64 byte_count; /* of whole frames */
};

/* Counters of a backend since it got its id; at index 0, of connections without a service. Incremented
 * by the programs, reset by loxilightd when the id is reused.
 */
struct backend_total {
	/* Connections assigned to it; those without a service are in ll_verdicts. */
	__u64 connection_count;
	struct traffic reused; /* of connections whose tuple a new one took over */
};

#define BACKENDS_PER_SEGMENT 16384 /* a power of two; a MiB */
#define BACKEND_SEGMENTS     1024

/* A backend with its counters, in one cache line. */
struct backend_entry {
	struct backend backend;
	/* Its connections, for least-connections. Incremented by the programs, corrected by
	 * loxilightd.
	 */
	__u32 load;
	struct backend_total total;
	__u64 pad;
};
_Static_assert(sizeof(struct backend_entry) == 64, "layout is pinned, and a cache line");

struct affinity_key {
	struct addr client;
	__u32 service_id;
};

struct affinity {
	__u32 backend_id;
	__u32 used_tick;
};

struct source_range_key {
	__u32 prefix_len; /* bits, including the 32 of set_id */
	__u32 set_id;
	struct addr addr;
};

/* The service to which clients are diverted. */
struct divert {
	__u32 service_id;
	__u32 family; /* of the clients: 4 or 6; ::/0 contains no IPv4 clients */
};

/* Counters of a service, per CPU, for events that no connection counts. */
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

#define SERVICE_NAME_MAX 256

/* The name by which loxilightd finds the id of a service again. */
struct service_name {
	char name[SERVICE_NAME_MAX]; /* padded with zeros */
};
