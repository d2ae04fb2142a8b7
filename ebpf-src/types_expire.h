/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* types_expire.h - connections that loxilightd has deleted. */
#pragma once

#include "types_conn.h"

#define EXPIRE_COUNT 64 /* connections that one run deletes at most */

enum expire_result {
	EXPIRE_ABSENT, /* there is no such entry */
	EXPIRE_STAYS,  /* the connection is not idle any more */
	EXPIRE_ALONE,  /* the entry is deleted; the other direction had none */
	EXPIRE_BOTH,   /* both are deleted */
};

struct expire {
	struct ct6_key key6;
	struct ct4_key key4;
	__u32 family; /* 4 or 6: which key is used; 0: the list ends before it */
	__u32 now_tick;
	__u32 idle_ticks;	   /* it stays if either direction was seen since */
	__u32 force;		   /* 1: however short it has been idle */
	enum expire_result result; /* written by the program */
	__u32 state;		   /* of both entries, before they were marked */
	struct ct_meta meta;	   /* of the deleted entries, as they were */
	struct ct_meta twin;
};
