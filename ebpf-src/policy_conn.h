/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* policy_conn.h - evaluates the network policies of both ends of a connection: after its destination
 * was translated, and before its source is.
 *
 * The port of an Endpoint says which Endpoint a packet is from, or for. On the ingress hook, the port
 * through which it will leave is not known yet, and follows from the address of the other end; if the
 * packet leaves through another one, the egress hook of that port evaluates it.
 */
#pragma once

#include "ct_conn.h"
#include "fib.h"
#include "policy.h"

/* What policy_end asks. The lower half is the port of the server, in network byte order. */
#define POLICY_PROTO(proto)  ((__u32)(proto) << 16)
#define POLICY_OF_CLIENT     0x01000000 /* the Endpoint is the client: its policies for egress */
#define POLICY_IPV4	     0x02000000
#define POLICY_NODE	     0x04000000 /* the other end is this node itself */
#define POLICY_NODE_IF_LOCAL 0x08000000 /* likewise, if the node has its address */
#define POLICY_RUNNING	     0x10000000 /* the connection exists already */

/* Reports whether a port belongs to an Endpoint with policies. */
static __always_inline int policy_is_at(__u32 ifindex)
{
	__u32 port = policy_port_here(ifindex);

	return policy_word() && bpf_map_lookup_elem(&ll_policy_port, &port);
}

/* Reports whether an address is one of the node's. */
static __always_inline int policy_is_node(struct work *w, const struct addr *addr)
{
	w->local_key.addr = *addr;
	w->local_key.netns = 0;
	if (bpf_map_lookup_elem(&ll_local, &w->local_key))
		return 1;
	w->local_key.netns = 1;
	return bpf_map_lookup_elem(&ll_local, &w->local_key) != NULL;
}

/* Reports whether a next hop leads to another Endpoint than the owner of the address to which p
 * goes. Policies were not evaluated for it, so the egress hook of its port must do so.
 */
static __always_inline int policy_misses(const struct addr *daddr, __u32 ifindex)
{
	return policy_is_at(ifindex) &&
	       policy_port_of(daddr, policy_word()) != policy_port_here(ifindex);
}

#define PORT_DNS bpf_htons(53)

/* Reports whether packets from a port to daddr may be DNS responses from which names are learnt. They
 * take no next hop, so that each passes the egress hook of the Endpoint: see names_learn.h. A global
 * function, so that the verifier walks it once.
 */
__noinline int names_come_from(const struct addr *daddr, __u32 sport)
{
	const struct policy_port *port;
	__u32 word, of;

	if (sport != PORT_DNS || !daddr)
		return 0;
	word = policy_word();
	of = word ? policy_port_of(daddr, word) : 0;
	port = of ? bpf_map_lookup_elem(&ll_policy_port, &of) : NULL;
	return port && port->network[!!(word & POLICY_SIDE)];
}

/* Returns the next hop at index, or 0 if packets to daddr must not take it: see policy_misses, and
 * names_come_from, for which sport is their source port. A global function, so that the verifier walks it
 * once.
 */
__noinline __u32 policy_nexthop(const struct addr *daddr, __u32 sport, __u32 index)
{
	struct nexthop *nexthop = index ? bpf_map_lookup_elem(&ll_nexthop, &index) : NULL;

	if (!daddr || !nexthop || policy_misses(daddr, nexthop_device(nexthop)) ||
	    names_come_from(daddr, sport))
		return 0;
	return index;
}

/* Prepares for decisions on another packet. */
static __always_inline void policy_forget(struct work *w)
{
	__builtin_memset(w->decided, 0, sizeof(w->decided));
}

/* Returns the action of the policies of the Endpoint at one end of a connection; peer: the other end. A
 * global function, so that the verifier walks it once.
 */
__noinline int policy_end(const struct addr *peer, __u32 what, __u32 endpoint, __u32 word)
{
	struct work *w = work_get();
	struct policy_query *q;
	struct decision *d;

	if (!w || !peer)
		return ACTION_DENY;
	q = &w->policy;
	q->direction = what & POLICY_OF_CLIENT ? POLICY_EGRESS : POLICY_INGRESS;
	q->endpoint = endpoint;
	q->word = word;
	q->table = endpoint ? policy_table(endpoint, q->direction, word, &w->judged) : 0;
	if (!q->table)
		return ACTION_ALLOW;
	q->peer = *peer;
	q->port = (__u16)what;
	q->proto = what >> 16;
	q->family = what & POLICY_IPV4 ? 4 : 6;
	q->running = !!(what & POLICY_RUNNING);
	q->node = what & POLICY_NODE || (what & POLICY_NODE_IF_LOCAL && policy_is_node(w, peer));
	d = &w->decided[q->direction & 1];
	d->port = q->endpoint;
	if (policy_ask(q, q->table))
		return ACTION_DENY;
	d->rule = q->cell.rule[q->self & 1];
	d->staged_rule = q->cell.staged_rule[q->self & 1];
	return q->cell.action[q->self & 1];
}

/* Counts a packet for a rule; opened: the packet opens a connection. A global function, so that the
 * verifier walks it once.
 */
__noinline int policy_count(__u32 rule, __u32 len_bytes, __u32 opened)
{
	struct policy_hits *hits;

	rule &= ~RULE_LOGGED;
	hits = bpf_map_lookup_elem(&ll_policy_hits, &rule);
	if (!hits)
		return 0;
	hits->connection_count += opened;
	hits->packet_count++;
	hits->byte_count += len_bytes;
	hits->last_tick = clock_tick();
	return 0;
}

/* Counts a packet for the rules that decided on it, as the Endpoint at one end sees it. */
static __always_inline void policy_count_end(const struct decision *d, __u32 len_bytes,
					     __u32 opened)
{
	if (d->rule)
		policy_count(d->rule, len_bytes, opened);
	if (d->staged_rule)
		policy_count(d->staged_rule, len_bytes, opened);
}

/* What policy_judge asks. */
#define JUDGE_EGRESS	0x1   /* the packet leaves */
#define JUDGE_FROM_NODE 0x2   /* the client is this node itself */
#define JUDGE_REPLY	0x4   /* the packet goes to the client */
#define JUDGE_MOVES	0x10  /* its destination was translated: it leaves elsewhere */
#define JUDGE_EXEMPT	0x8   /* no policy applies to the packet */
#define JUDGE_UNCOUNTED 0x20  /* the packet is dropped for another reason if policies apply */
#define JUDGE_ROUTED	0x40  /* it arrives, and the kernel routes it: it may be for this node */
#define JUDGE_TO_HERE	0x80  /* it arrives for a group, and this node is a member */
#define JUDGE_UNDERWAY	0x100 /* TCP, and it does not open a connection */
#define JUDGE_RUNNING	0x200 /* the connection exists already */

/* Counts a packet that the policies of the Endpoint at one end deny, and returns their action. */
static __always_inline int policy_denied(struct work *w, __u32 how, enum policy_direction direction,
					 __u32 len_bytes, int action)
{
	struct decision *other = &w->decided[!direction];

	if (!(how & JUDGE_UNCOUNTED)) {
		policy_count_end(&w->decided[direction], len_bytes, 0);
		if (other->staged_rule)
			policy_count(other->staged_rule, len_bytes, 0);
	}
	other->rule = 0;
	other->port = 0;
	return action;
}

/* Counts a packet that policies allow, for the ends whose Endpoint is in this netns: else a packet that
 * passes both would be counted twice. at: on this port only, 0: on each. opened: the packet opens a
 * connection. Returns whether policies log it. A global function, so that the verifier walks it once.
 */
__noinline int policy_allowed(__u32 len_bytes, __u32 at, __u32 opened)
{
	struct work *w = work_get();
	__u32 logged = 0;

	if (!w)
		return 0;
	for (int i = 0; i < 2; i++) {
		struct decision *d = &w->decided[i];

		if (!d->port || (d->port != POLICY_PORT_HERE &&
				 (d->port >> 31 != config_netns || (at && d->port != at)))) {
			d->rule = 0;
			d->port = 0;
			continue;
		}
		policy_count_end(d, len_bytes, opened);
		logged |= d->rule & RULE_LOGGED;
	}
	return !!logged;
}

/* Reports whether a client that has an address of the node is the node itself: in the switch netns, the
 * node's own packets arrive through the link to the host, or have arrived on no device; in the host
 * netns, they do not arrive.
 */
static __always_inline int policy_believes(struct __sk_buff *skb, __u32 how)
{
	__u32 from = skb->ifindex;
	struct device *device;

	asm volatile("" : "+r"(from)); /* two reads, not one at a variable offset */
	if (how & JUDGE_EGRESS)
		from = skb->ingress_ifindex;
	if (!config_netns)
		return 0;
	if (how & JUDGE_REPLY || !from)
		return 1;
	device = device_find(from);
	return device && device->flags & DEVICE_F_LINK;
}

/* Returns the port of the Endpoint that has sent a packet which arrived on a device; addr: its address.
 * The host receives the packets of all Endpoints through its link to the switch.
 */
static __always_inline __u32 policy_port_behind(__u32 ifindex, const struct addr *addr, __u32 word)
{
	struct device *device = config_netns ? NULL : device_find(ifindex);

	if (device && device->flags & DEVICE_F_LINK)
		return policy_port_of(addr, word);
	return policy_port_here(ifindex);
}

/* Reports whether the kernel delivers packets for an address, which arrive on the device in, to this
 * node itself.
 */
static __always_inline int policy_is_here(struct __sk_buff *skb, struct work *w,
					  const struct addr *addr, __u32 in)
{
	w->local_key.addr = *addr;
	w->local_key.netns = config_netns;
	return bpf_map_lookup_elem(&ll_local, &w->local_key) ||
	       route_ends_here(skb, addr, w->ends.family, in);
}

/* Reports whether a socket of this node has sent a packet that leaves, and that has arrived on no device:
 * an ICMP error of the node about a connection of others has not.
 */
static __always_inline int policy_sends(struct __sk_buff *skb, struct work *w,
					const struct addr *sender, __u32 how)
{
	if (how & JUDGE_REPLY)
		return policy_is_here(skb, w, sender, skb->ifindex);
	return how & JUDGE_FROM_NODE;
}

/* Reports whether a packet that arrives for an address is for a socket of this node. A reply is only if
 * the node has opened the connection: otherwise netfilter has translated the source of a forwarded
 * packet.
 */
static __always_inline int policy_gets(struct __sk_buff *skb, struct work *w,
				       const struct addr *receiver, __u32 how)
{
	if (how & JUDGE_TO_HERE)
		return 1;
	if (how & JUDGE_REPLY && !(how & JUDGE_FROM_NODE))
		return 0;
	return how & JUDGE_ROUTED && policy_is_here(skb, w, receiver, w->judge_in);
}

/* Finds the ports of the Endpoints that have sent a packet of w->ends, and that will get it. A global
 * function, so that the verifier walks it once.
 */
__noinline int policy_ports(struct __sk_buff *skb, __u32 how, __u32 word)
{
	struct work *w = work_get();
	__u32 from = skb->ingress_ifindex, ifindex = skb->ifindex, out;
	const struct addr *sender, *receiver;

	asm volatile("" : "+r"(from)); /* two reads, not one at a variable offset */
	if (!w)
		return 0;
	sender = how & JUDGE_REPLY ? &w->ends.daddr : &w->ends.saddr;
	receiver = how & JUDGE_REPLY ? &w->ends.saddr : &w->ends.daddr;
	w->judge_from = 0;
	if (!(how & JUDGE_EGRESS))
		w->judge_from = policy_port_behind(ifindex, sender, word);
	else if (!from && word & POLICY_HERE && policy_sends(skb, w, sender, how))
		w->judge_from = POLICY_PORT_HERE;
	if (how & JUDGE_EGRESS && !(how & JUDGE_MOVES)) {
		w->judge_to = policy_port_here(ifindex);
		return 0;
	}
	out = policy_port_of(receiver, word);
	if (!out && word & POLICY_HERE && policy_gets(skb, w, receiver, how))
		out = POLICY_PORT_HERE;
	w->judge_to = out;
	return 0;
}

/* Evaluates the policies of both ends of w->ends, which is from the client to the server, as they see
 * each other. Returns their action. A global function, so that the verifier walks it once.
 */
__noinline int policy_judge(struct __sk_buff *skb, __u32 how)
{
	struct work *w = work_get();
	__u32 word = policy_word(), what;
	int action;

	if (!w)
		return ACTION_DENY;
	w->judged = 0;
	policy_forget(w);
	policy_ports(skb, how, word);
	what = w->ends.dport | POLICY_PROTO(w->ends.proto);
	if (w->ends.family == 4)
		what |= POLICY_IPV4;
	if (how & JUDGE_RUNNING)
		what |= POLICY_RUNNING;
	action = policy_end(&w->ends.daddr, what | POLICY_OF_CLIENT | POLICY_NODE_IF_LOCAL,
			    how & JUDGE_REPLY ? w->judge_to : w->judge_from, word);
	if (action != ACTION_ALLOW)
		return policy_denied(w, how, POLICY_EGRESS, skb->len, action);
	if (how & JUDGE_FROM_NODE)
		what |= POLICY_NODE;
	else if (policy_believes(skb, how))
		what |= POLICY_NODE_IF_LOCAL;
	action = policy_end(&w->ends.saddr, what, how & JUDGE_REPLY ? w->judge_from : w->judge_to,
			    word);
	if (action != ACTION_ALLOW)
		return policy_denied(w, how, POLICY_INGRESS, skb->len, action);
	return action;
}

/* Returns the result for a packet that an action of policy_judge drops silently. */
static __always_inline int policy_drop(int action)
{
	return action == ACTION_UNKNOWN ? -DROP_POLICY_UNKNOWN : -DROP_POLICY;
}

/* Returns the result for p of an action of policy_judge. */
static __always_inline int policy_result(struct pkt *p, int action)
{
	if (action == ACTION_ALLOW)
		return LL_NEXT;
	if (action != ACTION_REJECT)
		return policy_drop(action);
	p->refused = DROP_POLICY;
	return LL_REFUSE;
}

/* Returns how p passes this hook: JUDGE_. */
static __always_inline __u32 policy_way(struct pkt *p, struct work *w)
{
	if (p->egress)
		return JUDGE_EGRESS;
	if (!(policy_word() & POLICY_HERE))
		return 0;
	/* A bridge floods a frame to a group: the node gets it from the bridge. */
	if (p->to_group)
		return p->bridge_port ? 0 : JUDGE_TO_HERE;
	w->judge_in = route_in(p);
	return p->bridged ? 0 : JUDGE_ROUTED;
}

/* Evaluates policies for p, which belongs to the connection w->conn, found under w->tuple. LL_NEXT: it
 * is allowed.
 */
static __always_inline int policy_follow(struct pkt *p, struct work *w)
{
	__u32 how;

	if (!policy_word())
		return LL_NEXT;
	how = policy_way(p, w) | JUDGE_RUNNING;
	if (w->conn.meta.flags & CT_F_FROM_NODE)
		how |= JUDGE_FROM_NODE;
	if (!addr_equal(&w->tuple.daddr, &w->conn.daddr))
		how |= JUDGE_MOVES;
	w->ends = w->tuple;
	if (w->conn.meta.flags & CT_F_REPLY) {
		how |= JUDGE_REPLY;
		tuple_turn(&w->ends);
		w->ends.saddr = w->conn.daddr;
	} else {
		w->ends.daddr = w->conn.daddr;
		w->ends.dport = w->conn.dport;
	}
	return policy_result(p, policy_judge(p->skb, how));
}
