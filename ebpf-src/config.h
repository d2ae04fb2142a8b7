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
