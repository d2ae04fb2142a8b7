/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* names_message.h - parses DNS messages (RFC 1035): the name in the question, the chain of aliases that
 * begins with it, and addresses.
 *
 * All state is in a map: the verifier knows nothing of it, so it walks the body of each loop once.
 */
#pragma once

#include <linux/in.h>

#include "maps.h"
#include "pkt.h"

#define DNS_MESSAGE_MAX 16384
#define DNS_HEADER	12
#define DNS_RECORD	10 /* type, class, TTL and length of a record, after its name */
#define DNS_ITEMS_MAX	(DNS_MESSAGE_MAX / 4) /* records, parameters and hints: each has 4 bytes */
#define DNS_ALIASES_MAX 16
#define DNS_NAME_MAX	254	    /* without the empty label at the end */
#define DNS_STEPS_MAX	512	    /* bytes and pointers of a name */
#define DNS_WORK_MAX	131072	    /* bytes and pointers of all names that are read of a message */
#define DNS_TTL_MAX	(7 * 86400) /* RFC 8767, section 4 */

enum dns_type {
	DNS_A = 1,
	DNS_CNAME = 5,
	DNS_AAAA = 28,
	DNS_HTTPS = 65, /* RFC 9460 */
};

/* Parameters of HTTPS records. */
enum dns_param {
	DNS_IPV4HINT = 4,
	DNS_IPV6HINT = 6,
};
#define DNS_IN 1

/* An alias: a name, by its hash, and the name for which it stands. */
struct dns_alias {
	__u64 owner;
	__u64 target;
	__u32 ttl_s;
	__u32 pad;
};

/* A name that belongs to the question, and how long. */
struct dns_link {
	__u64 hash;
	__u32 ttl_s;
	__u32 pad;
};

struct dns_work {
	__u8 message[DNS_MESSAGE_MAX + 64];
	__u32 len;
	__u32 steps; /* bytes and pointers of names that were read */
	/* The name that is being read. */
	__u32 at;
	__u32 start; /* of the part that is being read: pointers lead to earlier bytes */
	__u32 end;   /* after the name, where it was found; 0: not known yet */
	__u32 left;  /* bytes of the label */
	__u32 name_len;
	__u32 done;
	__u32 kept; /* 1: copied to text */
	__u64 hash;
	/* The question's name; at the end, room for a key that begins at any byte of it. */
	__u8 text[2 * NAME_SIZE];
	/* The records. */
	__u32 pos;
	__u32 record_count; /* read so far */
	__u32 learns;	    /* 0: checks all records, and collects aliases; 1: learns addresses */
	/* The HTTPS record whose parameters are being read. */
	__u32 hint_at;	  /* 0: none */
	__u32 hint_end;	  /* of its parameters */
	__u32 hint_left;  /* bytes of addresses, which begin at hint_at */
	__u32 hint_type;  /* of the addresses: DNS_A or DNS_AAAA */
	__s32 hint_ttl_s; /* of the addresses; -1: they do not belong to the question */
	__u32 alias_count;
	__u32 link_count;
	__u32 bad;
	struct dns_alias alias[DNS_ALIASES_MAX];
	struct dns_link link[DNS_ALIASES_MAX + 1];
	/* The numbers of names in policies that match the question. */
	__u32 id_count;
	__u32 id[NAME_SIZE / 2];
	__u32 label; /* where the next suffix begins */
	/* What the packet contains, and where: of the TCP connection or of the datagram. */
	struct dns_flow flow;
	__u32 seq;
	__u32 next_seq;
	__u32 off; /* from the start of the frame */
	__u32 size;
	__u32 checked;
	__u32 total; /* of a response in parts, including the bytes before it */
	/* The address that is being learnt. */
	struct learned_key key;
	__u32 expiry_tick;
	__u32 network;
	__u32 grace_s;
	__u32 now_tick;
	__u32 swept_tick; /* stays valid for later runs, like the next one */
	__u32 swept;	  /* 1: swept_tick is set */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct dns_work);
	__uint(max_entries, 1);
} ll_dns_work SEC(".maps");

static __always_inline struct dns_work *dns_work_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&ll_dns_work, &zero);
}

/* Returns an index that the verifier sees to be below a power of two. */
#define DNS_BELOW(index, size)                                          \
	({                                                              \
		__u64 i__ = (index);                                    \
		asm volatile("%0 &= %1" : "+r"(i__) : "i"((size) - 1)); \
		i__;                                                    \
	})

/* Returns a length from 1 to a power of two, such that the verifier sees it: for Linux 6.1, a number that
 * differs from 0 may still be 0.
 */
#define DNS_LENGTH(len, size) (DNS_BELOW((len) - 1, size) + 1)

static __always_inline __u8 dns_byte(const struct dns_work *w, __u32 at)
{
	return w->message[DNS_BELOW(at, DNS_MESSAGE_MAX)];
}

static __always_inline __u32 dns_u16(const struct dns_work *w, __u32 at)
{
	const __u8 *b = &w->message[DNS_BELOW(at, DNS_MESSAGE_MAX)];

	return (__u32)b[0] << 8 | b[1];
}

static __always_inline __u32 dns_u32(const struct dns_work *w, __u32 at)
{
	return dns_u16(w, at) << 16 | dns_u16(w, at + 2);
}

/* Adds a byte to the name that is being read. */
static __always_inline void dns_take(struct dns_work *w, __u8 b)
{
	if (w->kept)
		w->text[DNS_BELOW(w->name_len, NAME_SIZE)] = b;
	w->hash = (w->hash ^ b) * 0x100000001b3;
	w->name_len++;
}

/* Reads a byte of a name, or follows a pointer. Returns 1 at its end, or if it is malformed: see done. */
static long dns_name_step(__u32 i, void *unused)
{
	struct dns_work *w = dns_work_get();
	__u32 at;
	__u8 b;

	if (!w || w->at >= w->len || w->steps >= DNS_WORK_MAX)
		return 1;
	w->steps++;
	at = w->at;
	b = dns_byte(w, at);
	w->at = at + 1;
	if (w->left) {
		w->left--;
		dns_take(w, b >= 'A' && b <= 'Z' ? b | 0x20 : b);
		return 0;
	}
	if (!b || b >= 0xc0) {
		if (!w->end)
			w->end = b ? at + 2 : at + 1;
		if (!b) {
			w->done = 1;
			return 1;
		}
		if (at + 2 > w->len)
			return 1;
		at = dns_u16(w, at) & 0x3fff;
		if (at < DNS_HEADER || at >= w->start)
			return 1;
		w->at = at;
		w->start = at;
		return 0;
	}
	if (b >= 0x40 || w->name_len + 1 + b > DNS_NAME_MAX)
		return 1;
	dns_take(w, b);
	w->left = b;
	return 0;
}

/* Reads the name at an offset: sets w->hash, w->end and, if kept is 1, w->text. Returns 1, or 0 if the
 * name is malformed. A global function, so that the verifier walks it once.
 */
__noinline int dns_name(__u32 at, __u32 kept)
{
	struct dns_work *w = dns_work_get();

	if (!w)
		return 0;
	w->at = at;
	w->start = at;
	w->end = 0;
	w->left = 0;
	w->name_len = 0;
	w->done = 0;
	w->kept = kept;
	w->hash = 0xcbf29ce484222325;
	bpf_loop(DNS_STEPS_MAX, dns_name_step, NULL, 0);
	return w->done;
}

/* Returns the time for which the name with w->hash belongs to the question; -1: it does not. A global
 * function, as the next one, so that the verifier walks it once.
 */
__noinline int dns_linked(void)
{
	struct dns_work *w = dns_work_get();

	if (!w)
		return -1;
	for (__u32 i = 0; i <= DNS_ALIASES_MAX && i < w->link_count; i++)
		if (w->link[i].hash == w->hash)
			return w->link[i].ttl_s;
	return -1;
}

/* Reports whether alias n stands for the last link, at index last, and for no name that is linked. */
__noinline int dns_continues(__u32 n, __u32 last)
{
	struct dns_work *w = dns_work_get();
	const struct dns_alias *a;

	if (!w || n >= DNS_ALIASES_MAX || last > DNS_ALIASES_MAX || n >= w->alias_count)
		return 0;
	a = &w->alias[n];
	w->hash = a->target;
	return a->owner == w->link[last].hash && dns_linked() < 0;
}

/* Adds the name for which link i, the last one, is an alias. */
static long dns_link_step(__u32 i, void *unused)
{
	struct dns_work *w = dns_work_get();
	struct dns_link *link;
	__u32 n;

	for (n = 0; n < DNS_ALIASES_MAX; n++)
		if (dns_continues(n, i))
			break;
	if (!w || n >= DNS_ALIASES_MAX || i >= DNS_ALIASES_MAX)
		return 1;
	link = &w->link[DNS_BELOW(i, DNS_ALIASES_MAX)];
	n = DNS_BELOW(n, DNS_ALIASES_MAX);
	link[1].hash = w->alias[n].target;
	link[1].ttl_s = w->alias[n].ttl_s < link->ttl_s ? w->alias[n].ttl_s : link->ttl_s;
	w->link_count = i + 2;
	return 0;
}

/* Follows the aliases from the question on. */
static __always_inline void dns_follow(struct dns_work *w, __u64 question)
{
	w->link[0].hash = question;
	w->link[0].ttl_s = DNS_TTL_MAX;
	w->link_count = 1;
	bpf_loop(DNS_ALIASES_MAX, dns_link_step, NULL, 0);
}

/* Returns a TTL of a record (RFC 2181, section 8). */
static __always_inline __u32 dns_ttl(__u32 ttl_s)
{
	if (ttl_s >> 31)
		return 0;
	return ttl_s < DNS_TTL_MAX ? ttl_s : DNS_TTL_MAX;
}
