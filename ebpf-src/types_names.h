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
