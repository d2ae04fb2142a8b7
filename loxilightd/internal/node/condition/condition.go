// SPDX-License-Identifier: Apache-2.0

// Package condition determines whether objects whose rows are in the data plane are Ready: it
// compares the objects with the state of the node, such as attached devices, links, forwarding,
// backends and neighbours, and states what is missing. It neither applies rows nor changes the node.
package condition

import (
	"strings"

	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
)

// condition is a reason why packets do not reach an object although the data plane has the object's
// row. The zero value means that there is no such reason.
type condition struct {
	message string // the missing part, and the command that repairs it
	ready   bool   // the object is Ready nevertheless, so message is only informational
	quiet   bool   // the condition does not affect the health of the daemon
	untried bool   // something that the object needs is still being set up
}

func (c *condition) isMet() bool { return c.message == "" || c.ready }

// joinConditions returns one condition with all messages. It is met if all conditions in the list
// are met, and quiet if all of them are quiet.
func joinConditions(list []condition) condition {
	all := condition{ready: true, quiet: true}
	var messages []string
	final := false // an unmet condition that does not change by itself
	for _, is := range list {
		if is.message == "" {
			continue
		}
		messages = append(messages, is.message)
		all.ready, all.quiet, all.untried = all.ready && is.ready, all.quiet && is.quiet, all.untried || is.untried
		final = final || !is.ready && !is.untried
	}
	if len(messages) == 0 {
		return condition{}
	}
	all.message, all.untried = strings.Join(messages, "; "), all.untried && !final
	return all
}

func (c *condition) apply(s reconcile.Status) reconcile.Status {
	if c.message == "" || s.State != reconcile.Done {
		return s
	}
	s.Message = c.message
	if !c.ready {
		s.State, s.Reason, s.Failures = reconcile.Pending, reconcile.ReasonAbsent, 1
	}
	return s
}
