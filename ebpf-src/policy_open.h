/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* policy_open.h - evaluates the network policies for packets that open a connection, or belong to none.
 */
#pragma once

#include "fw.h"
#include "policy_conn.h"

/* Prepares policy_open for p, whose refusal is by policies unless the caller says otherwise. */
static __always_inline void policy_begin(struct pkt *p, struct work *w)
{
	p->refused = DROP_POLICY;
	w->judged = 0;
	policy_forget(w);
	w->judge = policy_way(p, w);
	if (p->egress && !p->skb->ingress_ifindex)
		w->judge |= JUDGE_FROM_NODE;
	if (p->proto == IPPROTO_TCP && p->fragment == FRAGMENT_NONE &&
	    ct_event_of(p) != EVENT_OPEN && policy_word() & POLICY_HERE)
		w->judge |= JUDGE_UNDERWAY;
	if (firewall_is_exempt(p))
		w->judge |= JUDGE_EXEMPT;
}

/* Which end has opened the TCP connection of a socket of this node. */
#define SOCKET_NONE   0 /* there is no such socket */
#define SOCKET_SERVER 1 /* the other end */
#define SOCKET_CLIENT 2 /* this node */

/* Returns whether a socket of this node has the TCP connection whose packets arrive as t, and which
 * end has opened it: the other end if the node listens on the port. A global function, so that the
 * verifier walks it once.
 */
__noinline int policy_socket(struct __sk_buff *skb, const struct tuple *t)
{
	struct bpf_sock_tuple key = {};
	struct bpf_sock *socket;
	int state, size;

	if (!t)
		return SOCKET_NONE;
	if (t->family == 4) {
		size = sizeof(key.ipv4);
		key.ipv4.saddr = t->saddr.word[3];
		key.ipv4.daddr = t->daddr.word[3];
		key.ipv4.sport = t->sport;
		key.ipv4.dport = t->dport;
		socket = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		size = sizeof(key.ipv6);
		__builtin_memcpy(key.ipv6.saddr, &t->saddr, sizeof(t->saddr));
		__builtin_memcpy(key.ipv6.daddr, &t->daddr, sizeof(t->daddr));
		key.ipv6.sport = t->sport;
		key.ipv6.dport = t->dport;
		socket = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return SOCKET_NONE;
	state = socket->state;
	bpf_sk_release(socket);
	if (state == BPF_TCP_LISTEN)
		return SOCKET_NONE;
	/* No connection is from port 0, so this finds a listening socket only. */
	if (size == sizeof(key.ipv4)) {
		key.ipv4.sport = 0;
		socket = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		key.ipv6.sport = 0;
		socket = bpf_skc_lookup_tcp(skb, &key, sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!socket)
		return SOCKET_CLIENT;
	bpf_sk_release(socket);
	return SOCKET_SERVER;
}

/* Returns how to evaluate policies for a packet of w->tuple that does not open a TCP connection. If
 * the packet leaves this node or arrives for it, and goes to the end that has opened its connection,
 * before policies applied to this node: with JUDGE_REPLY, and w->ends is from that end. A global
 * function, so that the verifier walks it once.
 */
__noinline __u32 policy_underway(struct __sk_buff *skb, __u32 how)
{
	struct work *w = work_get();
	int leaves = how & JUDGE_EGRESS;

	if (!w || !(how & (JUDGE_FROM_NODE | JUDGE_ROUTED)))
		return how;
	if (leaves)
		tuple_turn(&w->ends);
	if (policy_socket(skb, &w->ends) != (leaves ? SOCKET_SERVER : SOCKET_CLIENT)) {
		w->ends = w->tuple;
		return how;
	}
	if (!leaves)
		tuple_turn(&w->ends);
	return (how | JUDGE_REPLY) ^ JUDGE_FROM_NODE;
}

/* Evaluates policies for a packet of w->tuple, which opens a connection to the destination in w->conn;
 * plain: to the one in w->tuple. LL_NEXT: it is allowed. LL_PASS: it is allowed, and its connection
 * must not be opened in its direction. Not inlined, and with few arguments: the
 * functions that open connections have little room on the stack.
 */
__noinline int policy_open(struct __sk_buff *skb, __u32 plain)
{
	struct work *w = work_get();
	__u32 how;
	int action;

	if (!w || !policy_word() || w->judge & JUDGE_EXEMPT)
		return LL_NEXT;
	how = w->judge;
	w->ends = w->tuple;
	if (plain) {
		if (how & JUDGE_UNDERWAY)
			how = policy_underway(skb, how);
	} else {
		w->ends.daddr = w->conn.daddr;
		w->ends.dport = w->conn.dport;
		if (!addr_equal(&w->tuple.daddr, &w->conn.daddr))
			how |= JUDGE_MOVES;
	}
	action = policy_judge(skb, how);
	switch (action) {
	case ACTION_ALLOW:
		return how & JUDGE_REPLY ? LL_PASS
					 : LL_NEXT; /* the other end opens the connection */
	case ACTION_REJECT:
		/* A copy that a bridge has flooded is not for this port: others answer it. */
		if (how & JUDGE_EGRESS && policy_misses(&w->ends.daddr, skb->ifindex))
			break;
		return LL_REFUSE;
	}
	return policy_drop(action);
}

/* Counts and logs p, which policies allow: see policy_allowed. */
static __always_inline void policy_note(struct pkt *p, __u32 at, __u32 opened)
{
	if (policy_allowed(p->skb->len, at, opened))
		sample_send(p, SAMPLE_POLICY, 0);
}

/* Evaluates policies for p, which cannot be tracked; ret: the result of the last stage. LL_PASS: it is
 * allowed.
 */
static __always_inline int policy_rest(struct pkt *p, struct work *w, int ret)
{
	int allowed;

	if (!policy_word())
		return LL_PASS;
	tuple_of(&w->tuple, p);
	policy_begin(p, w);
	if (ret == LL_UNCLEAR || p->needs_first & FRAGMENT_UNKNOWN)
		w->judge |= JUDGE_UNCOUNTED;
	allowed = policy_open(p->skb, 1);

	if (w->judged && ret == LL_UNCLEAR)
		return -DROP_UNCLEAR;
	if (w->judged && p->needs_first & FRAGMENT_UNKNOWN)
		return -DROP_FRAGMENT;
	if (allowed != LL_NEXT)
		return allowed;
	if (w->judged)
		policy_note(p, policy_port_here(p->skb->ifindex), 0);
	return LL_PASS;
}
