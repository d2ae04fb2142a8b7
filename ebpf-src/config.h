/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* config.h - constants that loxilightd sets before it loads the programs. */
#pragma once

#include <linux/types.h>

/* The netns that this copy of the programs serves: 0 host, 1 switch. Connections, devices and next
 * hops belong to one netns.
 */
volatile const __u8 config_netns = 0;

/* Returns the first of count entries of the netns that this copy serves, in an array that has count
 * entries for each netns. The value is hidden from the compiler, which would turn the addition of
 * an index into an OR, whose result the verifier of Linux 6.1 does not bound.
 */
static __always_inline __u32 config_first_entry(__u32 count)
{
	__u32 first = (config_netns & 1) * count;

	asm volatile("" : "+r"(first));
	return first;
}

/* Ticks after which the kernel confirms a next hop again. */
volatile const __u32 config_confirm_ticks = 37;

/* Set in a shadow program, which runs before an old program on the same hook until the old program
 * is replaced. It marks packets that it has handled, so that the old program ignores them, and
 * passes packets whose connections only the old program may know.
 */
volatile const __u8 config_shadow = 0;

/* A hash of all instructions of the program. A loaded program with the same hash, constants and
 * maps is identical, and need not be loaded again. The programs do not read it.
 */
volatile const __u64 config_build = 0;
