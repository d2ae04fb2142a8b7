/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* reply_sctp.h - answers to refused SCTP packets (RFC 9260, section 8.4). */
#pragma once

#include "reply.h"
#include "ct_state.h"
#include "sctp_csum.h"

#define SCTP_ERROR	   9
#define SCTP_COOKIE_ACK	   11
#define SCTP_SHUTDOWN_ACK  8
#define SCTP_TAG_REFLECTED 1 /* flag T of ABORT and SHUTDOWN COMPLETE */
#define ANSWER_SCTP_CHUNKS 8 /* searched for an ABORT */

/* Reports whether the packet contains an ABORT after its first chunk. */
static __always_inline int answer_sctp_aborts(struct __sk_buff *skb, const struct answer *a)
{
	__u32 off = a->l4_off + 12, end = a->l3_off + a->packet_len;
	struct {
		__u8 type;
		__u8 flags;
		__be16 len;
	} chunk;

	for (int i = 0; i < ANSWER_SCTP_CHUNKS; i++) {
		if (off + sizeof(chunk) > end ||
		    bpf_skb_load_bytes(skb, off, &chunk, sizeof(chunk)))
			return 0;
		if (chunk.type == SCTP_ABORT)
			return 1;
		if (bpf_ntohs(chunk.len) < sizeof(chunk))
			return 0;
		off += (bpf_ntohs(chunk.len) + 3) & ~3;
	}
	return 0;
}

/* Answers a packet of an unknown SCTP association. LL_NEXT: it must not be answered. */
__noinline int answer_abort(struct __sk_buff *skb)
{
	struct answer *a = answer_get();
	struct {
		__be16 sport;
		__be16 dport;
		__u32 tag;
		__u32 csum;
		__u8 type;
		__u8 flags;
		__be16 len;
	} *sctp;
	__u32 crc = ~0, *word;

	if (!a || a->sctp_chunk == SCTP_SHUTDOWN_COMPLETE || a->sctp_chunk == SCTP_COOKIE_ACK ||
	    a->sctp_chunk == SCTP_ERROR || answer_sctp_aborts(skb, a))
		return LL_NEXT;
	sctp = (void *)&a->bytes[ANSWER_L4];
	sctp->sport = a->dport;
	sctp->dport = a->sport;
	sctp->csum = 0;
	sctp->type = a->sctp_chunk == SCTP_SHUTDOWN_ACK ? SCTP_SHUTDOWN_COMPLETE : SCTP_ABORT;
	sctp->flags = SCTP_TAG_REFLECTED;
	sctp->len = bpf_htons(4);
	if (bpf_skb_load_bytes(skb, a->l4_off + 4, &sctp->tag, 4))
		return -DROP_REWRITE;
	if (a->sctp_chunk == SCTP_INIT && !sctp->tag) {
		/* The tag that the peer expects. */
		sctp->flags = 0;
		if (bpf_skb_load_bytes(skb, a->l4_off + 16, &sctp->tag, 4))
			return LL_NEXT;
	}
	word = (void *)sctp;
	for (int i = 0; i < 4; i++) {
		crc ^= word[i];
		for (int bit = 0; bit < 32; bit++)
			crc = (crc >> 1) ^ (CRC32C_POLY & -(crc & 1));
	}
	sctp->csum = ~crc;
	a->len = sizeof(*sctp);
	return answer_send(skb);
}
