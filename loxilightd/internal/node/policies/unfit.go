// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// fitInterval is the time between two attempts to put all policies in force while some do not fit and no
// other policy is deleted or changed.
const fitInterval = time.Minute

// Unfit are the policies that are not in force as desired, because the data plane has no room for them
// beside the others: all traffic of their subjects is denied instead. The others are in force. Methods
// of nil act as if all policies fit.
type Unfit struct {
	of       *policy.State             // the desired state
	policies map[string]*policy.Policy // the desired values
	cause    error
	tried    time.Time // when the data plane had no room for all of a desired state
}

// FindUnfit returns the policies of a state because of which the data plane refused it with an error;
// nil: they are not the cause, or not even isolation of all policies fits. before is the state in force:
// policies that are part of it are isolated only if no others suffice.
func FindUnfit(s, before *policy.State, cause error, fits func(*policy.State) error) *Unfit {
	if !errors.Is(cause, datapath.ErrCapacity) {
		return nil
	}
	names, err := unfitIn(s, before, fits)
	if err != nil || len(names) == 0 {
		return nil
	}
	u := &Unfit{of: s, policies: map[string]*policy.Policy{}, cause: cause, tried: time.Now()}
	for name := range names {
		u.policies[name] = s.Policies[name]
	}
	return u
}

// Isolate returns a state in which the policies are isolated.
func (u *Unfit) Isolate(i *Isolator, s *policy.State) *policy.State {
	return i.Isolate(s, maps.Keys(u.policies))
}

// Still returns the policies that another state desires unchanged, to which u then belongs; nil: none.
func (u *Unfit) Still(s *policy.State) *Unfit {
	if u == nil {
		return nil
	}
	now := &Unfit{of: s, policies: map[string]*policy.Policy{}, cause: u.cause, tried: u.tried}
	for name, p := range u.policies {
		if s.Policies[name] == p {
			now.policies[name] = p
		}
	}
	if len(now.policies) == 0 {
		return nil
	}
	return now
}

// IsDue reports whether all policies of another state should be tried again: after some time, or if a
// policy was deleted or changed, which may have made room.
func (u *Unfit) IsDue(s *policy.State) bool {
	if u == nil || time.Since(u.tried) >= fitInterval {
		return true
	}
	for name, p := range u.of.Policies {
		if s.Policies[name] != p {
			return true
		}
	}
	return false
}

// IsIn reports whether s is the desired state to which the policies belong.
func (u *Unfit) IsIn(s *policy.State) bool { return u != nil && u.of == s }

// Has reports whether a policy is among them.
func (u *Unfit) Has(name string) bool { return u != nil && u.policies[name] != nil }

// Err returns an error that contains a [datapath.RuleError] for each of the policies.
func (u *Unfit) Err() error {
	var all []error
	if u != nil {
		for _, name := range slices.Sorted(maps.Keys(u.policies)) {
			all = append(all, &datapath.RuleError{Rule: name, Err: u.cause})
		}
	}
	return errors.Join(all...)
}

// Text returns the status of one of the policies.
func (u *Unfit) Text(name string) string {
	p := u.policies[name]
	if p.Staged {
		return fmt.Sprintf("not evaluated, because it does not fit: %v", u.cause)
	}
	var directions []string
	for d, named := range named(p) {
		if named {
			directions = append(directions, policy.Direction(d).String())
		}
	}
	return fmt.Sprintf("all %s of its subjects is denied, because it does not fit: %v", strings.Join(directions, " and "), u.cause)
}

// Problem returns a message about all of the policies.
func (u *Unfit) Problem() string {
	first := slices.Min(slices.Collect(maps.Keys(u.policies)))
	return fmt.Sprintf("%d Policies are not in force as desired; Policy/%s: %s", len(u.policies), first, u.Text(first))
}
