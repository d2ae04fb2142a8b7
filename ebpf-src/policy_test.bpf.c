/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* policy_test.bpf.c - for tests only: looks up many verdicts at once, and learns names. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "parse.h"
#include "names_packet.h"

#define TEST_QUERY_COUNT 65536

struct test_query {
	struct policy_query query;
	__s32 result; /* 1: there is a cell; 0: no policy applies; -1: the tables cannot be read */
};

MAP(test_queries, BPF_MAP_TYPE_ARRAY, __u32, struct test_query, TEST_QUERY_COUNT, 0);

struct test_run {
	__u32 word;
	__u32 answered;
};

static long test_one(__u32 i, struct test_run *run)
{
	struct test_query *q = bpf_map_lookup_elem(&test_queries, &i);
	__u32 known, table;

	if (!q)
		return 1;
	q->query.word = run->word;
	q->result = 0;
	if (!run->word)
		return 0;
	table = policy_table(q->query.endpoint, q->query.direction, run->word, &known);
	if (table)
		q->result = policy_ask(&q->query, table) ? -1 : 1;
	run->answered += q->result == 1;
	return 0;
}

/* Answers the first skb->mark queries. Returns how many had a table. */
SEC("tc")
int test_policy(struct __sk_buff *skb)
{
	struct test_run run = { .word = policy_word() };

	bpf_loop(skb->mark, test_one, &run, 0);
	return run.answered;
}

/* Learns names, in the network skb->mark, from the DNS message behind an Ethernet header. */
SEC("tc")
int test_names(struct __sk_buff *skb)
{
	struct dns_work *dns = dns_work_get();
	__u32 len = skb->len - ETH_HLEN;

	asm volatile("" : "+r"(len));
	if (!dns || !len || len > DNS_MESSAGE_MAX ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, dns->message, len))
		return 0;
	dns->len = len;
	dns->network = skb->mark;
	dns->grace_s = 0;
	dns->now_tick = clock_tick();
	return names_learn_message();
}

/* Learns names, in the network skb->mark, from a frame to an Endpoint. */
SEC("tc")
int test_names_packet(struct __sk_buff *skb)
{
	struct dns_work *dns = dns_work_get();
	struct resolver resolver = {};
	__u32 network = skb->mark;
	struct pkt p = {};

	if (!dns || !names_may_come(skb) || parse_packet(skb, &p) != LL_NEXT)
		return 0;
	p.skb = skb;
	names_in_packet(&p, dns, &resolver, network);
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
