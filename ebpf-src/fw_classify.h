/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* fw_classify.h - evaluates compiled rule sets: finds the rule that applies to a packet.
 *
 * The rules of a set are compiled into an image, which datapath/classify builds and describes: each
 * field is looked up in a trie of bytes, the resulting classes are folded, and the first rule whose
 * bit is set in all vectors applies. The time is bounded by the widths of the fields and, if
 * several vectors remain, by 1/64 of the number of rules. Rules are grouped into regions, so that
 * usually only one word of each vector is read.
 *
 * An image is the only value of an array map, so that reads within it need no further look-ups. It
 * has one of four sizes, since the verifier requires a constant value size; ll_rules contains the
 * number of the map that a rule set uses.
 */
#pragma once

#include "count.h"
#include "maps.h"

#define RULES_MAGIC 0x4c4c4302

/* Kinds of trie entries; an entry with neither bit refers to a node. */
#define ENTRY_LEAF  0x80000000
#define ENTRY_SKIP  0x40000000
#define ENTRY_VALUE 0x3fffffff /* leaf: its value; else an offset in units of 4 bytes */

#define TRIE_DEPTH_MAX 16 /* bytes of a key */
#define WORDS_MAX      320
#define VECTORS_MAX    FIELD_COUNT

/* A bit for each byte value at which a run of equal entries begins, and the entries of the runs. */
struct trie_node {
	__u64 begins[4];
	__u8 count[4]; /* of set bits in the preceding words */
	__u32 entry[256];
};

/* A few bytes: keys that begin with them continue at same, all others at other. */
struct trie_skip {
	__u64 value;
	__u32 bit_count; /* of value; at most 56 */
	__u32 same;
	__u32 other;
	__u32 pad;
};

/* Returns a pointer to the byte at offset at of an image. For any offset, the mask keeps reads of
 * fewer than IMAGE_SLACK bytes within the value.
 */
#define IMAGE_AT(image, mask, at)                                          \
	({                                                                 \
		__u64 off__ = (at);                                        \
		asm volatile("%0 &= %1" : "+r"(off__) : "i"((mask) & ~3)); \
		(void *)(image) + off__;                                   \
	})

static __always_inline __u32 bit_count(__u64 v)
{
	v -= v >> 1 & 0x5555555555555555;
	v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
	v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
	return v * 0x0101010101010101 >> 56;
}

/* Returns the index of the lowest set bit of v, which must not be 0. */
static __always_inline __u32 first_bit(__u64 v)
{
	return bit_count((v & -v) - 1);
}

/* Looks up a key in a trie. The first byte of the key is the most significant byte of hi. */
static __always_inline __u32 trie_walk(const void *image, __u32 mask, __u32 entry, __u64 hi,
				       __u64 lo)
{
	for (int i = 0; i < TRIE_DEPTH_MAX && !(entry & ENTRY_LEAF); i++) {
		__u64 at = (__u64)(entry & ENTRY_VALUE) << 2;

		if (entry & ENTRY_SKIP) {
			const struct trie_skip *skip = IMAGE_AT(image, mask, at);
			__u32 n = skip->bit_count & 63;

			entry = hi >> (-n & 63) == skip->value ? skip->same : skip->other;
			hi = hi << n | lo >> (-n & 63);
			lo <<= n;
		} else {
			const struct trie_node *node = IMAGE_AT(image, mask, at);
			__u32 b = hi >> 56;
			__u64 begins = node->begins[b >> 6] & ((2ULL << (b & 63)) - 1);
			__u32 rank = node->count[b >> 6] + bit_count(begins) - 1;

			entry = node->entry[rank & 255];
			hi = hi << 8 | lo >> 56;
			lo <<= 8;
		}
	}
	return entry & ENTRY_VALUE;
}

typedef __u32 walk_fn(const void *image, __u32 entry, __u64 hi, __u64 lo);

/* Looks up a field. */
static __always_inline void search_field(const void *image, struct classify_key *key, __u32 mask,
					 walk_fn *walk, __u32 field, __u32 root, __u64 hi, __u64 lo)
{
	const struct rules_header *header = image;
	__u32 entry = header->root[root];
	__u32 table = header->table[field];
	__u32 at;

	if (!(entry & ENTRY_LEAF))
		entry = walk(image, entry, hi, lo);
	key->sum += entry & ENTRY_VALUE;
	if (!table)
		return;
	at = *(__u32 *)IMAGE_AT(image, mask, table + (__u64)key->sum * 4);
	key->sum = 0;
	key->vector[key->vector_count++ & 15] = at;
	for (int i = 0; i < AGGREGATE_WORDS; i++)
		key->words[i] &= *(__u64 *)IMAGE_AT(image, mask, at + 8 * i);
}

/* Looks up a device by its name. An unknown device has an empty name. */
static __always_inline void search_device(const void *image, struct classify_key *key, __u32 mask,
					  walk_fn *walk, __u32 field, __u32 root, __u32 ifindex)
{
	const struct rules_header *header = image;
	struct device_key device_key = { .ifindex = ifindex, .netns = config_netns };
	struct device *device = NULL;
	__u64 hi = 0, lo = 0;

	if (!(header->root[root] & ENTRY_LEAF))
		device = bpf_map_lookup_elem(&ll_device, &device_key);
	if (device) {
		hi = bpf_be64_to_cpu(*(__u64 *)device->name);
		lo = bpf_be64_to_cpu(*(__u64 *)(device->name + 8));
	}
	search_field(image, key, mask, walk, field, root, hi, lo);
}

static __always_inline void search_addr(const void *image, struct classify_key *key, __u32 mask,
					walk_fn *walk, __u32 field, __u32 root4,
					const struct addr *a)
{
	__u64 hi = (__u64)bpf_ntohl(a->word[0]) << 32 | bpf_ntohl(a->word[1]);
	__u64 lo = (__u64)bpf_ntohl(a->word[2]) << 32 | bpf_ntohl(a->word[3]);

	if (key->family == 4)
		search_field(image, key, mask, walk, field, root4, lo << 32, 0);
	else
		search_field(image, key, mask, walk, field, root4 + 1, hi, lo);
}

/* Looks up all fields, one after the other. The root of a field that no rule uses is a leaf. */
static __always_inline void search_fields(const void *image, struct classify_key *key, __u32 mask,
					  walk_fn *walk)
{
	__u64 layer4 = (__u64)key->proto << 56 | (__u64)bpf_ntohs(key->dport) << 40;

	search_field(image, key, mask, walk, FIELD_HOOK, ROOT_HOOK, (__u64)key->hook << 56, 0);
	search_field(image, key, mask, walk, FIELD_DSCP, ROOT_DSCP, (__u64)key->dscp << 56, 0);
	search_field(image, key, mask, walk, FIELD_TCP_FLAGS,
		     key->known & KNOWN_TCP_FLAGS ? ROOT_TCP_FLAGS : ROOT_NO_TCP_FLAGS,
		     (__u64)key->tcp_flags << 56, 0);
	search_field(image, key, mask, walk, FIELD_VLAN, ROOT_VLAN, (__u64)key->vlan << 48, 0);
	search_device(image, key, mask, walk, FIELD_IN, ROOT_IN, key->in_ifindex);
	search_device(image, key, mask, walk, FIELD_OUT, ROOT_OUT, key->out_ifindex);
	search_field(image, key, mask, walk, FIELD_SOURCE_PORT,
		     key->known & KNOWN_SPORT ? ROOT_SOURCE_PORT : ROOT_NO_SOURCE_PORT,
		     (__u64)bpf_ntohs(key->sport) << 48, 0);
	search_field(image, key, mask, walk, FIELD_LAYER4,
		     key->known & KNOWN_LAYER4 ? ROOT_LAYER4 : ROOT_NO_LAYER4, layer4, 0);
	search_addr(image, key, mask, walk, FIELD_SOURCE, ROOT_SOURCE4, &key->saddr);
	search_addr(image, key, mask, walk, FIELD_DESTINATION, ROOT_DESTINATION4, &key->daddr);
}

/* The context of a search in an image, for bpf_loop. */
struct search {
	const void *image;
	struct classify_key *key;
};

typedef long word_fn(__u32 i, struct search *s);

/* Returns the record of the rule at a place: its bit index in the vectors. */
static __always_inline const struct rule_record *search_record(const void *image, __u32 mask,
							       __u64 place)
{
	const struct rules_header *header = image;

	return IMAGE_AT(image, mask, header->rules + place * sizeof(struct rule_record));
}

/* Skips the remaining words of the region that contains word. */
static __always_inline void search_leave(struct search *s, __u32 mask, __u32 word)
{
	const struct rules_header *header = s->image;
	const __u32 *at = IMAGE_AT(s->image, mask, header->regions + (__u64)word * 4);
	const __u64 *behind = IMAGE_AT(s->image, mask, *at);

	for (int i = 0; i < AGGREGATE_WORDS; i++)
		s->key->words[i] &= behind[i];
}

/* Searches the next word in which all vectors may have a set bit. Returns 1 to end the search. */
static __always_inline int search_word(struct search *s, __u32 mask)
{
	const struct rules_header *header = s->image;
	struct classify_key *key = s->key;
	const struct rule_record *record;
	__u64 all = ~0ULL, words = 0;
	__u32 word, place;

	for (word = 0; word < 64 * AGGREGATE_WORDS; word += 64) {
		words = key->words[word / 64];
		if (words)
			break;
	}
	if (!words)
		return 1;
	key->words[word / 64] = words & (words - 1);
	word += first_bit(words);
	if (key->found >= 0 &&
	    search_record(s->image, mask, (__u64)word * 64)->rank > key->rule.rank) {
		search_leave(s, mask, word);
		return 0;
	}
	for (__u32 i = 0; i < VECTORS_MAX && i < key->vector_count; i++) {
		__u64 at = key->vector[i] + header->chunks + (word >> 3) * 4;

		at = *(__u32 *)IMAGE_AT(s->image, mask, at);
		all &= *(__u64 *)IMAGE_AT(s->image, mask, at + (word & 7) * 8);
	}
	if (!all)
		return 0;
	place = word * 64 + first_bit(all);
	record = search_record(s->image, mask, place);
	if (key->found < 0 || record->rank < key->rule.rank) {
		key->found = place;
		key->rule = *record;
	}
	if (!header->regions)
		return 1;
	search_leave(s, mask, word);
	return 0;
}

/* Evaluates the rules of an image. Returns the same as classify. */
static __always_inline int search_image(const void *image, struct classify_key *key, __u32 mask,
					walk_fn *walk, word_fn *next_word)
{
	const struct rules_header *header = image;
	struct search s = { image, key };

	if (header->magic != RULES_MAGIC)
		return -1;
	for (int i = 0; i < AGGREGATE_WORDS; i++)
		key->words[i] = header->words[i];
	key->sum = 0;
	key->vector_count = 0;
	key->found = -1;
	search_fields(image, key, mask, walk);
	if (!header->direct) {
		bpf_loop(WORDS_MAX, next_word, &s, 0);
		return key->found >= 0;
	}
	if (!key->vector[0])
		return 0;
	key->rule = *search_record(image, mask, (__u64)key->vector[0] - 1);
	return 1;
}

/* The functions that depend on the size of an image. Global functions, so that the verifier walks
 * them once.
 */
#define IMAGE_FUNCTIONS(size, mask)                                                           \
	__noinline __u32 walk_##size(const struct image_##size *image, __u32 entry, __u64 hi, \
				     __u64 lo)                                                \
	{                                                                                     \
		return image ? trie_walk(image, mask, entry, hi, lo) : 0;                     \
	}                                                                                     \
	static long word_##size(__u32 i, struct search *s)                                    \
	{                                                                                     \
		return search_word(s, mask);                                                  \
	}                                                                                     \
	__noinline int classify_##size(__u32 set, struct classify_key *key)                   \
	{                                                                                     \
		void *images = bpf_map_lookup_elem(&ll_image_##size, &set);                   \
		__u32 zero = 0;                                                               \
		void *image = images ? bpf_map_lookup_elem(images, &zero) : NULL;             \
                                                                                              \
		if (!image || !key)                                                           \
			return -1;                                                            \
		return search_image(image, key, mask, (walk_fn *)walk_##size, word_##size);   \
	}

IMAGE_FUNCTIONS(128k, (1 << 17) - 1)
IMAGE_FUNCTIONS(1m, (1 << 20) - 1)
IMAGE_FUNCTIONS(8m, (1 << 23) - 1)
IMAGE_FUNCTIONS(64m, (1 << 26) - 1)

/* Evaluates a rule set (enum rule_set). 1: key->rule applies. 0: no rule matches. -1: the rule set
 * cannot be read.
 */
__noinline int classify(__u32 set, struct classify_key *key)
{
	struct rules *rules = bpf_map_lookup_elem(&ll_rules, &set);

	if (!rules || !key)
		return -1;
	switch (rules->image) {
	case 0:
		return 0;
	case 1:
		return classify_128k(set, key);
	case 2:
		return classify_1m(set, key);
	case 3:
		return classify_8m(set, key);
	case 4:
		return classify_64m(set, key);
	}
	return -1;
}

/* Counts a packet for the rule that it matched; opened: the packet opens a connection. */
static __always_inline void count_rule(__u32 id, __u32 len_bytes, int opened)
{
	struct rule_hits *hits = id ? bpf_map_lookup_elem(&ll_rule_hits, &id) : NULL;

	if (!hits)
		return;
	hits->packet_count++;
	hits->byte_count += len_bytes;
	hits->connection_count += opened;
}
