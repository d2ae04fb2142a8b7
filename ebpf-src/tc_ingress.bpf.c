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
	enum nat_flag nat;
	enum netfilter_flag netfilter;
	enum nexthop_flag nexthop;
	enum prefix_flag prefix;
	enum rule_flag rule;
	enum rule_set rule_set;
	enum rules_flag rules;
	enum service_addr_flag service_addr;
	enum service_flag service;
} config_enums = {};

/* Forwards a packet whose connection was found on the slow path, or opened. */
static __noinline int forward(struct pkt *p, struct work *w)
{
	__u32 index = w->conn.meta.nexthop;

	track_prepare(p, w);
	/* Without a service, the kernel routes the packet. */
	if (!index && w->conn.meta.service_id) {
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

/* Does nothing, but the verifier does not know that: the verifier discards its knowledge about p,
 * and walks the code after the call once, not for each path that leads here. The caller must set
 * p->skb again.
 */
__noinline int forget(struct pkt *p)
{
	int ret = 0;

	asm volatile("" : "+r"(ret));
	return p ? ret : 0;
}

SEC("tc")
int ll_tc_ingress(struct __sk_buff *skb)
{
	struct pkt p;
	__u32 word = skb->tc_index;
	struct work *w;
	int ret, domain, forged;

	if (word & TC_INDEX_UNDERLAY) {
		skb->tc_index = 0;
		__builtin_memset(&p, 0, sizeof(p));
		p.in_port = skb->ifindex;
		p.skb = skb;
		p.now_tick = clock_tick();
		if (decap_crosses(&p, word)) {
			ret = underlay_send(skb, &p, word & TC_INDEX_PEER);
			p.skb = skb;
			goto out;
		}
	} else if (word) {
		int done = (word & 0xff00) == TC_INDEX_DONE_INGRESS &&
			   handled_before(skb, guard_may_be_on(skb->ifindex));

		skb->tc_index = done && word & 0xff ? TC_INDEX_OURS | (word & 0xff) : 0;
		if (done)
			return TC_ACT_UNSPEC;
	}
	if (!(word & TC_INDEX_UNDERLAY)) {
		ret = config_fast ? fast_forward(skb) : FAST_NOT;
		if (ret >= 0)
			return ret;
		__builtin_memset(&p, 0, sizeof(p));
		p.in_port = skb->ifindex;
		p.half_open = ret == FAST_MISS;
		if (ret < FAST_NOT) {
			parse_packet(skb, &p);
			p.skb = skb;
			p.now_tick = clock_tick();
			return finish(&p, ret);
		}
	}
	/* Frames to a group are left to the kernel if the rules allow them. */
	p.to_group = skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST;
	p.skb = skb;
	p.now_tick = clock_tick();
	if (p.to_group && !firewall_rules())
		goto pass;
	ret = parse_packet(skb, &p);
	p.skb = skb;
	if (!config_netns && p.icmp_error && !p.peer && !guard_may_be_on(skb->ifindex)) {
		path_heard(skb, &p);
		p.skb = skb;
	}
	if (!config_netns && (p.proto == IPPROTO_UDP || p.proto == IPPROTO_GRE) && !p.peer &&
	    !guard_may_be_on(skb->ifindex)) { /* a pod is never a peer */
		int tunnel = decap_underlay(skb, &p);

		p.skb = skb;
		if (tunnel == LL_INNER) {
			p.half_open = 0;
			ret = parse_packet(skb, &p);
			p.skb = skb;
		} else if (tunnel != LL_NEXT) {
			ret = tunnel;
			goto out;
		}
	}
	if (p.peer) {
		int inner = decap_inner(&p);

		if (inner != LL_NEXT) {
			ret = inner;
			goto out;
		}
		if (p.early) {
			if (p.fragment)
				ret = LL_PASS;
			goto track;
		}
	}
	if (ret == LL_PASS)
		goto pass;
	if (ret == LL_NEXT && p.fragment == FRAGMENT_LATER)
		ret = fragment_learn(&p);
	domain = domain_ingress(&p);
	if (domain < 0) {
		ret = domain;
		goto out;
	}
	if (domain != LL_NEXT) {
		if (!firewall_rules())
			goto pass;
		ret = ret == LL_NEXT ? LL_UNTRACKED : ret;
	}
	if (p.tunnel) {
		ret = tunnel_send_routed(&p);
		goto out;
	}
	if (p.to_group && ret == LL_NEXT)
		ret = LL_UNTRACKED;
track:
	if (ret == LL_NEXT && !p.half_open && !p.icmp_error)
		ret = p.family == 4 ? track_ipv4(&p) : track_ipv6(&p);
	if (ret < 0 || ret == LL_STACK || ret == LL_REDIRECT)
		goto out;
	if (p.early) {
		ret = decap_to_device(&p);
		goto out;
	}
	if (is_spoofed(skb, &p)) {
		ret = -DROP_SPOOFED;
		goto out;
	}
	forged = forged_comes(skb, &p);
	p.skb = skb;
	if (forged) {
		ret = forged;
		goto out;
	}
	if (ret == LL_UNTRACKED && p.icmp_type == ND_SOLICITATION && p.proto == IPPROTO_ICMPV6) {
		int sent = announce_nd(skb, 0);

		if (sent != TC_ACT_UNSPEC)
			return sent;
	}
	forget(&p);
	p.skb = skb;
	w = work_get();
	if (!w)
		return TC_ACT_UNSPEC;
	if (ret == LL_NEXT)
		ret = track_find_allowed(&p, w);
	if (ret == LL_UNTRACKED) {
		int lost = announce_lost(&p);

		if (lost != LL_NEXT)
			ret = lost;
	}
	if (ret == LL_UNTRACKED || ret == LL_UNCLEAR)
		ret = firewall_rest(&p, w, ret);
	if (ret == LL_PASS && p.fragment == FRAGMENT_FIRST && p.needs_first && firewall_rules())
		fragment_teach(&p);
	if (ret == LL_NEXT)
		ret = forward(&p, w);
out:
	return refuse_or_finish(&p, ret);
pass:
	if (is_spoofed(skb, &p))
		return finish(&p, -DROP_SPOOFED);
	return announce_answer(skb, p.to_group);
}

char _license[] SEC("license") = "Dual BSD/GPL";
