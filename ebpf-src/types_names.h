/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_names.h - keys and values of the maps of names in network policies, and of the addresses that
 * were learnt for them from DNS responses.
 */
#pragma once

#include "types.h"

#define NAME_SIZE 256 /* a name has at most 255 bytes in a message (RFC 1035, section 2.3.4) */

/* A name as in a message: labels, each after its length; in lower case, padded with zeros. */
struct name_text {
	__u8 text[NAME_SIZE];
};

/* The numbers of a name in policies; 0: none has it. */
struct name_ids {
	__u32 exact; /* of the name itself */
	__u32 below; /* of all names that end in it, with at least one more label: *.NAME */
};

#define NAME_ADDR_MAX 1000 /* addresses of a name in all networks, expired ones included */

struct name_stats {
	__u64 refused_count; /* addresses that were not learnt, since there was no room */
	__u32 addr_count;    /* in ll_learned */
	__u32 refused_tick;  /* when one was not learnt last */
};

/* A DNS server whose responses are learnt for the Endpoints in a network. */
struct resolver_key {
	struct addr addr;
	__u32 network;
};

struct resolver {
	__u32 grace_s; /* new connections may use an address this long after its TTL */
};

/* An address of a name, learnt in a network. */
struct learned_key {
	struct addr addr;
	__u32 name; /* its number */
	__u32 network;
};

struct learned {
	__u32 expiry_tick; /* the last tick in which new connections may use the address */
};

/* What one DNS server sends an Endpoint: in a TCP connection, or in the fragments of a datagram. */
struct dns_flow {
	struct addr resolver;
	struct addr endpoint;
	__u32 network;
	__u32 id; /* TCP: the Endpoint's port; UDP: the identification of the fragments */
	__u32 proto;
};

struct dns_stream {
	__u32 next_seq; /* where the next response begins, with its length; host order */
};

#define DNS_PART_SIZE 16384
#define DNS_PART_TEXT 8 /* offset of the message */

/* A response of which some bytes are missing: behind a UDP header, or behind its length, which then is at
 * offset 6. Used for the flow and the response whose numbers lead to it; another one replaces it.
 */
struct dns_part {
	struct dns_flow flow;
	__u32 seq;  /* TCP: where the response begins */
	__u32 busy; /* 1: a CPU uses it */
	__u32 have; /* bytes from the beginning on */
	__u32 from; /* bytes behind a gap: from, up to to; 0, 0: none */
	__u32 to;
	__u32 seen_tick; /* when it began */
	__u32 checked;	 /* UDP: the first fragment belongs to a connection of the Endpoint */
	__u32 pad[2];
	__u8 bytes[DNS_PART_SIZE + 256];
};

_Static_assert(__builtin_offsetof(struct dns_part, bytes) % 8 == 0, "words are copied");
