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
	w->judge = p->egress ? JUDGE_EGRESS : 0;
	if (p->egress && !p->skb->ingress_ifindex)
		w->judge |= JUDGE_FROM_NODE;
	if (firewall_is_exempt(p))
		w->judge |= JUDGE_EXEMPT;
}

/* Evaluates policies for a packet of w->tuple, which opens a connection to the destination in w->conn;
 * plain: to the one in w->tuple. LL_NEXT: it is allowed. Not inlined, and with few arguments: the
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
	if (!plain) {
		w->ends.daddr = w->conn.daddr;
		w->ends.dport = w->conn.dport;
		if (!addr_equal(&w->tuple.daddr, &w->conn.daddr))
			how |= JUDGE_MOVES;
	}
	action = policy_judge(skb, how);
	switch (action) {
	case ACTION_ALLOW:
		return LL_NEXT;
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
