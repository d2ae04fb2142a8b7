/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ct.h - what the slow path knows of a packet and its connection.
 *
 * A connection has two entries, one for each direction. The key of an entry is the arriving tuple,
 * its value the leaving tuple; the key of the other entry is the leaving tuple, reversed.
 */
#pragma once

#include "maps.h"
#include "pkt.h"

/* An entry of either family, copied out of the table. */
struct conn {
	struct ct_meta meta;
	struct ct_more more;
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 index; /* of the entry */
};

struct tuple {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 family;
	__u16 domain;
};

/* The form in which a packet leaves. */
struct rewrite {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 dec_ttl;	/* decrement the TTL: the node is a hop */
	__u8 translate; /* addresses or ports differ from those on arrival */
	__u8 pad[2];
};

/* The parts of a packet on which the state of its connection depends. */
struct segment {
	__u32 now_tick;
	__u32 end;  /* TCP: the sequence number; with FIN, the sequence number of the FIN */
	__u32 ack;  /* TCP: the acknowledgement; SCTP: the verification tag */
	__u8 event; /* enum ct_event */
	__u8 proto;
	__u8 tcp_flags;
	__u8 pad;
};

#define NEXTHOP_HINTS 32

#define ROOM_GROUP 16 /* see ct_table_room.h */

/* What the policies of an Endpoint decided on a packet. */
struct decision {
	__u32 rule; /* as in struct policy_cell */
	__u32 staged_rule;
	__u32 port; /* of the Endpoint; 0: no policy applies */
};

/* State of the slow path that does not fit on the stack (512 bytes for all nested calls). One for
 * each CPU; only the hints stay valid from one run of a program to the next.
 */
struct work {
	struct tuple tuple;
	struct conn conn;
	struct tuple twin_tuple;
	struct conn twin;
	struct segment segment;
	struct conn old; /* an ended connection with the tuple of the new one */
	struct tuple old_tuple;
	__u32 reopen;	/* old is valid */
	__u32 fresh;	/* the new connection has no entry yet */
	__u32 lost;	/* another connection has the tuple of its replies */
	__u32 resolved; /* its next hop was looked up */
	/* The output device according to fib, which is valid for w->conn; 0: fib is not valid. */
	__u32 routed;
	__u16 nexthop; /* of a new connection, if known; and of its replies */
	__u16 twin_nexthop;
	struct bpf_fib_lookup fib;
	struct bpf_redir_neigh gateway; /* for route_redirect */
	struct rewrite rewrite;
	struct service service;
	struct snat_target snat_target;
	__u32 now_tick;	     /* of the packet, for functions that do not get the packet */
	__u32 echo;	     /* ICMP: a new port replaces both ports */
	__u32 source_nat_id; /* of a new connection, if another NAT translates its source */
	__u32 spare_tick;
	__be16 spare_port; /* of an ended or expired translated connection; 0: none was seen */
	__u16 spare_ended; /* it has ended */
	__u32 port_source; /* for nat_port_share.h: 0x10000 plus 16 bits of a hash; 0: no shares */
	__u32 port_holder; /* the same for the holder of the last port tried; 0: unknown */
	struct nat_pair_key pair_key;
	struct mapping_key mapping_key; /* the inner side */
	struct mapping_key mapping_outer_key;
	struct mapping mapping;
	struct block_key block_key;
	struct block_owner_key block_owner_key;
	struct block block;
	struct source_range_key source_range_key;
	struct pkt inner; /* quoted in an ICMP error */
	/* From ll_tc_ingress to ll_tc_slow: a packet, and the result of the last stage. */
	struct pkt handed;
	__s32 handed_result;
	/* Keys of the entry that is looked up or inserted. */
	struct ct4_key key4 __attribute__((aligned(8)));
	struct ct6_key key6 __attribute__((aligned(8)));
	struct service_key service_key;
	struct service_id_key service_id_key;
	struct local_key local_key;
	struct affinity_key affinity_key;
	struct classify_key classify_key;
	struct policy_query policy;
	struct learned_key learned_key;
	struct policy_name name; /* that is looked up */
	struct tuple ends; /* for policies: from the client to the server, as they see each other */
	__u32 judge;	   /* what policy_open asks: JUDGE_ */
	__u32 judge_in;	   /* the device of arrival as the kernel's routes see it */
	__u32 judge_from;  /* the port of the sender, as policies name it; 0: none */
	__u32 judge_to;	   /* of the receiver */
	__u32 judged;	   /* an Endpoint with policies sends or gets the packet */
	struct decision decided[2]; /* on the packet, by direction */
	/* Next hops of the most recent connections, by netns. They stay valid for later runs. */
	__u16 nexthop_hint[2][NEXTHOP_HINTS];
	struct ct4_key put4; /* the key of the entry that is inserted, while room is made for it */
	struct ct6_key put6;
	__u32 put_home; /* its homes */
	__u32 put_home_elsewhere;
	__u32 home; /* of the key, see ct_table.h */
	__u32 home_elsewhere;
	__u32 home_moves; /* ct_moves of the key */
	__u32 chain;	  /* of the home that was searched last */
	__u32 last_put; /* the entry inserted last: of the same connection, and not to be evicted */
	/* Entries that could make room, see ct_table_room.h. */
	__u32 room_best;
	__u32 room_victim;
	__u32 room_tick;
	__u32 room_not;	  /* the index of a connection that must stay */
	__u32 room_young; /* expired ones are not considered */
	__u32 room_age[ROOM_GROUP];
	__u32 room_index[ROOM_GROUP];
	__u16 room_site[ROOM_GROUP] __attribute__((aligned(8)));
	__u16 room_client[ROOM_GROUP] __attribute__((aligned(8)));
	__u32 tcp_at;	      /* in memory: the verifier would track each value of a register */
	__u8 tcp_options[72]; /* 40 are used; a 6-bit offset stays in bounds */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__uint(value_size, sizeof(struct work));
	__uint(max_entries, 1);
} ll_work SEC(".maps");

static __always_inline struct work *work_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&ll_work, &zero);
}

static __always_inline void key4_from(struct ct4_key *k, const struct tuple *t)
{
	key4_set(k, t->saddr.word[3], t->daddr.word[3], ports_word(t->sport, t->dport), t->proto,
		 t->domain);
}

static __always_inline void key6_from(struct ct6_key *k, const struct tuple *t)
{
	key6_set(k, &t->saddr, &t->daddr, ports_word(t->sport, t->dport), t->proto, t->domain);
}

static __always_inline void tuple_of(struct tuple *t, const struct pkt *p)
{
	t->saddr = p->saddr;
	t->daddr = p->daddr;
	t->sport = p->sport;
	t->dport = p->dport;
	t->proto = p->proto;
	t->family = p->family;
	t->domain = p->domain;
}

/* Stores in *t the tuple of the replies to packets with the arriving tuple *of and the leaving
 * tuple in *c.
 */
static __always_inline void tuple_reply(struct tuple *t, const struct conn *c,
					const struct tuple *of)
{
	t->saddr = c->daddr;
	t->daddr = c->saddr;
	t->sport = c->dport;
	t->dport = c->sport;
	t->proto = of->proto;
	t->family = of->family;
	t->domain = of->domain;
}

/* Reverses a tuple. */
static __always_inline void tuple_turn(struct tuple *t)
{
	struct addr a = t->saddr;
	__be16 port = t->sport;

	t->saddr = t->daddr;
	t->daddr = a;
	t->sport = t->dport;
	t->dport = port;
}

static __always_inline int conn_is_half_open(const struct conn *c)
{
	return !(c->meta.flags & CT_F_LASTING);
}
