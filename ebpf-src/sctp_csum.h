/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* sctp_csum.h - updates SCTP's CRC32c (RFC 9260, appendix A) after a change of the ports.
 *
 * A CRC is linear: the CRC of the whole packet changes by the CRC of the changed bits, followed by
 * as many zero bytes as the packet has after them. Appending 2^n zero bytes is one multiplication
 * modulo the polynomial, as in zlib's crc32_combine. Addresses are not covered: SCTP has no pseudo
 * header.
 */
#pragma once

#include "drop.h"
#include "pkt.h"

#define CRC32C_POLY   0x82f63b78 /* reflected */
#define CRC32C_POWERS 16	 /* packets of less than 2^16 bytes */

/* x^(8 * 2^n) modulo the polynomial, reflected. */
static const __u32 crc32c_power[CRC32C_POWERS] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a,
	0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a,
	0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* Multiplies two polynomials modulo the CRC polynomial, without branches, which the verifier would
 * follow. A global function, so that the verifier walks it once.
 */
__noinline __u32 crc32c_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = (b >> 1) ^ (CRC32C_POLY & -(b & 1));
	}
	return product;
}

/* Updates the checksum after the ports, at l4_off, have changed by changed_bits (the exclusive or
 * of the old and new ports, as in memory). l4_len excludes link-layer padding. A global function,
 * so that the verifier walks it once.
 */
__noinline int sctp_csum(struct __sk_buff *skb, __u32 l4_off, __u32 l4_len, __u32 changed_bits)
{
	__u32 off = l4_off + 8, zeros = l4_len - 4, crc = changed_bits, csum;

	if (bpf_skb_load_bytes(skb, off, &csum, sizeof(csum)))
		return -DROP_REWRITE;
	/* The output device has yet to compute the checksum (or, once in 2^32 packets, the checksum
	 * is zero). The device includes the present value in its computation, so that value must
	 * stay zero.
	 */
	if (!csum)
		return LL_NEXT;
	if (zeros >= 1 << CRC32C_POWERS)
		return -DROP_REWRITE;
	for (int i = 0; i < 32; i++)
		crc = (crc >> 1) ^ (CRC32C_POLY & -(crc & 1));
	for (int i = 0; i < CRC32C_POWERS; i++) {
		__u32 advanced = crc32c_multiply(crc32c_power[i], crc);

		crc = zeros >> i & 1 ? advanced : crc;
	}
	csum ^= crc;
	if (bpf_skb_store_bytes(skb, off, &csum, sizeof(csum), 0))
		return -DROP_REWRITE;
	return LL_NEXT;
}
