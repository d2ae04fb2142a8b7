/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* config.h - constants that loxilightd sets before it loads the programs. */
#pragma once

#include <linux/types.h>

/* The netns that this copy of the programs serves: 0 host, 1 switch. Connections, devices and next
 * hops belong to one netns.
 */
volatile const __u8 config_zone = 0;

/* Ticks after which the kernel confirms a next hop again. */
volatile const __u32 config_confirm_ticks = 37;

/* Set in a shadow program, which runs before another of our programs on the same hook while one
 * replaces the other. It marks packets that it has handled, so that the other one ignores them, and
 * passes packets that only the other one may know.
 */
volatile const __u8 config_first = 0;

/* A hash of all instructions of the program. A loaded program with the same hash, constants and
 * maps is this program, and need not be loaded again. The programs do not read it.
 */
volatile const __u64 config_build = 0;
