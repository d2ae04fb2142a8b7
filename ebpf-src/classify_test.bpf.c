/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* classify_test.bpf.c - for tests only: evaluates the rules for many packets at once. */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "fw_classify.h"

#define TEST_KEY_COUNT 65536

struct test_key {
	struct classify_key key;
	__s32 result; /* of classify */
};

MAP(test_keys, BPF_MAP_TYPE_ARRAY, __u32, struct test_key, TEST_KEY_COUNT, 0);

struct test_run {
	__u32 set;
	__u32 matched;
};

static long test_one(__u32 i, struct test_run *run)
{
	struct test_key *k = bpf_map_lookup_elem(&test_keys, &i);

	if (!k)
		return 1;
	k->result = classify(run->set, &k->key);
	run->matched += k->result == 1;
	return 0;
}

/* Evaluates the first skb->mark entries with the rule set skb->priority. Returns the number of
 * matches.
 */
SEC("tc")
int test_classify(struct __sk_buff *skb)
{
	struct test_run run = { .set = skb->priority };

	bpf_loop(skb->mark, test_one, &run, 0);
	return run.matched;
}

char _license[] SEC("license") = "Dual BSD/GPL";
