/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* tc_ingress.bpf.c - the program on the ingress hook of every port.
 *
 * The code reads top to bottom in packet order; each stage is one header file.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "l2_responder.h"
#include "clock.h"
#include "tun_forged.h"
#include "source_guard.h"
#include "parse.h"
#include "reply_reject.h"
#include "nh_resolve.h"
#include "fastpath_skb.h"
#include "fastpath.h"
#include "fastpath_full.h"
#include "tun_decap.h"
#include "tun_pmtu.h"

/* Never read. An enum without a variable of its type would be missing from BTF, from which
 * loxilightd takes its constants.
 */
volatile const struct {
	enum announced_flag announced;
	enum backend_flag backend;
	enum bridge_port_flag bridge_port;
	enum ct_flag ct;
	enum device_flag device;
	enum guard_flag guard;
	enum mirror_flag mirror;
	enum nat_flag nat;
	enum netfilter_flag netfilter;
	enum nexthop_flag nexthop;
	enum prefix_flag prefix;
	enum rule_flag rule;
	enum epoch_of epoch;
	enum rule_set rule_set;
	enum rules_flag rules;
	enum service_addr_flag service_addr;
	enum service_flag service;
} config_enums = {};

/* The program of the slow path. Each loaded ll_tc_ingress has an array of its own, so that a
 * replacement of the programs is atomic: no packet passes through programs of two versions.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1);
} ll_slow SEC(".maps");

/* ll_slow is empty: another program has deleted its pins while loxilightd did not run. Packets that a
 * rule or a source guard may refuse, or that a NAT may have to translate, must not pass.
 */
static __always_inline int slow_path_lost(struct __sk_buff *skb, struct pkt *p, int ret)
{
	if (!guard_may_be_on(skb->ifindex) &&
	    (ret == LL_PASS || (!firewall_rules() && !rules_of(RULES_SNAT) && !policy_word())))
		return TC_ACT_UNSPEC;
	return finish(p, -DROP_NO_SLOW_PATH);
}

/* Continues with ll_tc_slow, which gets p and the result of the last stage. */
static __always_inline int slow_path(struct __sk_buff *skb, struct pkt *p, int ret)
{
	struct work *w = work_get();

	if (w) {
		p->skb = NULL;
		w->handed = *p;
		w->handed_result = ret;
		bpf_tail_call(skb, &ll_slow, 0);
		p->skb = skb;
	}
	return slow_path_lost(skb, p, ret);
}

/* A packet whose word says from which peer it comes, or that it is for a peer. LL_REDIRECT or a drop
 * reason: it was sent to that peer.
 */
static __always_inline int ingress_crosses(struct __sk_buff *skb, struct pkt *p, __u32 word)
{
	int ret;

	skb->tc_index = 0;
	if (!decap_crosses(p, word))
		return LL_NEXT;
	ret = underlay_send(skb, p, word & TC_INDEX_PEER);
	p->skb = skb;
	return ret;
}

/* A packet that arrives in the host netns: it may be from the underlay of a tunnel. ret: the result of
 * parsing. LL_INNER: it was decapsulated and is to be parsed again.
 */
static __always_inline int ingress_underlay(struct __sk_buff *skb, struct pkt *p, int ret)
{
	int tunnel;

	if (!p->icmp_error && p->proto != IPPROTO_UDP && p->proto != IPPROTO_GRE)
		return ret;
	if (p->peer || guard_may_be_on(skb->ifindex))
		return ret; /* a pod is never a peer */
	if (p->icmp_error) {
		path_heard(skb, p);
		p->skb = skb;
		return ret;
	}
	tunnel = decap_underlay(skb, p);
	p->skb = skb;
	return tunnel == LL_NEXT ? ret : tunnel;
}

/* A parsed packet, unless it was just decapsulated: LL_NEXT if it is to be routed or bridged by its
 * connection.
 */
static __always_inline int ingress_domain(struct pkt *p, int ret)
{
	int domain;

	if (ret == LL_NEXT && p->fragment == FRAGMENT_LATER)
		ret = fragment_learn(p);
	domain = domain_ingress(p);
	if (domain < 0)
		return domain;
	if (domain != LL_NEXT) {
		if (!firewall_rules() && !policy_word())
			return LL_PASS;
		return ret == LL_NEXT ? LL_UNTRACKED : ret;
	}
	if (p->tunnel)
		return tunnel_send_routed(p);
	return p->to_group && ret == LL_NEXT ? LL_UNTRACKED : ret;
}

/* Parses a packet and forwards it if it belongs to an established connection. Other results are for
 * the slow path.
 */
static __always_inline int ingress_stages(struct __sk_buff *skb, struct pkt *p)
{
	int ret;

	/* To a group: for the kernel, if the rules allow it. */
	p->to_group = skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST;
	p->skb = skb;
	p->now_tick = clock_tick();
	if (p->to_group && !firewall_rules() && !policy_word())
		return LL_PASS;
	ret = parse_packet(skb, p);
	p->skb = skb;
	if (!config_netns)
		ret = ingress_underlay(skb, p, ret);
	if (ret < 0 || ret == LL_REDIRECT)
		return ret;
	if (ret == LL_INNER) {
		p->missed = MISSED_NOT;
		ret = parse_packet(skb, p);
		p->skb = skb;
	}
	if (p->peer) {
		int inner = decap_inner(p);

		if (inner != LL_NEXT)
			return inner;
	}
	if (p->early)
		ret = p->fragment ? LL_PASS : ret;
	else if (ret != LL_PASS)
		ret = ingress_domain(p, ret);
	if (ret == LL_NEXT && !p->missed && !p->icmp_error)
		ret = p->family == 4 ? track_ipv4(p) : track_ipv6(p);
	if (p->early && ret >= 0 && ret != LL_STACK && ret != LL_REDIRECT)
		ret = decap_to_device(p);
	return ret;
}

SEC("tc")
int ll_tc_ingress(struct __sk_buff *skb)
{
	struct pkt p;
	__u32 word = skb->tc_index;
	int ret = LL_NEXT, fast = FAST_NOT;

	if (word && !(word & TC_INDEX_UNDERLAY)) {
		int done = (word & 0xff00) == TC_INDEX_DONE_INGRESS &&
			   handled_before(skb, guard_may_be_on(skb->ifindex));

		skb->tc_index = done && word & 0xff ? TC_INDEX_OURS | (word & 0xff) : 0;
		if (done)
			return TC_ACT_UNSPEC;
	}
	if (!(word & TC_INDEX_UNDERLAY)) {
		fast = config_fast ? fast_forward(skb) : FAST_NOT;
		if (fast >= 0)
			return fast;
	}
	__builtin_memset(&p, 0, sizeof(p));
	p.in_port = skb->ifindex;
	p.skb = skb;
	p.missed = fast == FAST_MISS	    ? MISSED_NONE
		   : fast == FAST_UNSETTLED ? MISSED_UNSETTLED
					    : MISSED_NOT;
	if (fast < FAST_NOT) {
		p.now_tick = clock_tick();
		parse_packet(skb, &p);
		p.skb = skb;
		return finish(&p, fast);
	}
	if (word & TC_INDEX_UNDERLAY) {
		p.now_tick = clock_tick();
		ret = ingress_crosses(skb, &p, word);
	}
	if (ret == LL_NEXT)
		ret = ingress_stages(skb, &p);
	if (ret < 0 || ret == LL_STACK || ret == LL_REDIRECT)
		return finish(&p, ret);
	return slow_path(skb, &p, ret);
}

/* Forwards a packet whose connection was found on the slow path, or opened. */
static __noinline int forward(struct pkt *p, struct work *w)
{
	__u32 index = w->conn.meta.nexthop;

	track_prepare(p, w);
	/* Without a service, the kernel routes the packet. */
	if (!index && w->conn.meta.flags & CT_F_SERVICE) {
		index = nexthop_resolve(p, w, w->routed);
		if (index)
			nexthop_note(w, index);
	}
	return track_forward(p, index, w->conn.meta.flags, &w->rewrite);
}

static __always_inline int is_spoofed(struct __sk_buff *skb, struct pkt *p)
{
	int refused;

	if (!guard_may_be_on(skb->ifindex))
		return 0;
	refused = guard_refuses(skb, p);
	p->skb = skb;
	return refused;
}

/* Finds or opens the connection of a packet, and forwards it. ret: the result of the stages before. */
static __always_inline int slow_stages(struct pkt *p, struct work *w, int ret)
{
	if (ret == LL_NEXT)
		ret = track_find_allowed(p, w);
	if (ret == LL_UNTRACKED) {
		int lost = announce_lost(p);

		if (lost != LL_NEXT)
			ret = lost;
	}
	if (ret == LL_UNTRACKED || ret == LL_UNCLEAR)
		ret = firewall_rest(p, w, ret);
	if (ret == LL_PASS && p->fragment == FRAGMENT_FIRST && p->needs_first &&
	    (firewall_rules() || policy_word()))
		fragment_teach(p);
	return ret == LL_NEXT ? forward(p, w) : ret;
}

SEC("tc")
int ll_tc_slow(struct __sk_buff *skb)
{
	struct work *w = work_get();
	int ret, forged;
	struct pkt p;

	if (!w)
		return TC_ACT_UNSPEC;
	p = w->handed;
	p.skb = skb;
	ret = w->handed_result;
	if (is_spoofed(skb, &p))
		return finish(&p, -DROP_SPOOFED);
	if (ret == LL_PASS)
		return announce_answer(skb, p.to_group);
	forged = forged_comes(skb, &p);
	p.skb = skb;
	if (forged)
		return finish(&p, forged);
	if (ret == LL_UNTRACKED && p.icmp_type == ND_SOLICITATION && p.proto == IPPROTO_ICMPV6) {
		int sent = announce_nd(skb, 0);

		if (sent != TC_ACT_UNSPEC)
			return sent;
		p.skb = skb;
	}
	return refuse_or_finish(&p, slow_stages(&p, w, ret));
}

char _license[] SEC("license") = "Dual BSD/GPL";
