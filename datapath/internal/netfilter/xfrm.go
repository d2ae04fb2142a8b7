// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const xfrmGroupPolicy = 4 // XFRMNLGRP_POLICY

// xfrmPolicies finds IPsec policies that apply to forwarded packets: a packet that they require to
// be encrypted must not be sent in the clear.
func xfrmPolicies() ([]finding, error) {
	messages, err := list(unix.NETLINK_XFRM, nl.XFRM_MSG_GETPOLICY, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, nil // a kernel without IPsec
	}
	if err != nil {
		return nil, err
	}
	var count uint32
	for _, m := range messages {
		if len(m) < nl.SizeofXfrmUserpolicyInfo {
			return nil, fmt.Errorf("a policy of %d bytes", len(m))
		}
		if dir := nl.DeserializeXfrmUserpolicyInfo(m).Dir; dir == xfrmOut || dir == xfrmForward {
			count++
		}
	}
	if count == 0 {
		return nil, nil
	}
	what := "an IPsec policy"
	if count > 1 {
		what = fmt.Sprintf("%d IPsec policies", count)
	}
	return []finding{{routed: true, why: "xfrm: " + what + " for what leaves or is forwarded"}}, nil
}

// XFRM_POLICY_OUT and XFRM_POLICY_FWD.
const (
	xfrmOut     = 1
	xfrmForward = 2
)
