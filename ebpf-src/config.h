/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* config.h - what loxilightd sets before it loads the programs. */
#pragma once

#include <linux/types.h>

/* The network namespace that this copy of the programs serves: 0 host, 1 switch.
 * Connections, devices and next hops of one are not those of the other.
 */
volatile const __u8 config_zone = 0;

/* Ticks after which a next hop is confirmed by the kernel again. */
volatile const __u32 config_confirm_ticks = 37;

/* Set in a copy that runs before another of our programs on the same hook while one
 * takes over from the other: it marks what it has handled, so that the other leaves
 * it alone, and leaves to the other what only that may know.
 */
volatile const __u8 config_first = 0;

/* Of all instructions of the program: one in the kernel that has the same, and the same
 * other constants and maps, is this program, and need not be loaded again. Nothing here
 * reads it.
 */
volatile const __u64 config_build = 0;
