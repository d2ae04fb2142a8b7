/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_expire.h - deletion of connections that loxilightd selected. */
#pragma once

#include "types_conn.h"

#define EXPIRE_COUNT 64 /* maximum number of connections that one run deletes */

enum expire_result {
	EXPIRE_ABSENT, /* no such entry */
	EXPIRE_STAYS,  /* the connection is no longer idle */
	EXPIRE_ALONE,  /* the entry is deleted; the other direction had none */
	EXPIRE_BOTH,   /* both entries are deleted */
};

struct expire {
	struct ct6_key key6;
	struct ct4_key key4;
	/* The key of the other direction: if it differs by now, another connection has the first. */
	struct ct6_key twin6;
	struct ct4_key twin4;
	__u32 family; /* 4 or 6: which keys are used; 0: end of the list */
	__u32 now_tick;
	__u32 idle_ticks;	   /* it stays if either direction was seen within this time */
	__u32 force;		   /* 1: delete it even if it is not idle */
	enum expire_result result; /* written by the program */
	__u32 state;		   /* of both entries, before they were marked */
	struct ct_meta meta;	   /* of the deleted entries */
	struct ct_meta twin;
	struct ct_more more;
	struct ct_more twin_more;
};
