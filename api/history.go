// SPDX-License-Identifier: Apache-2.0

package api

// Methods of the history; additions to the first contract.
const (
	MethodHistory  = "history"
	MethodRollback = "rollback"
	MethodConfirm  = "confirm"
)

// PendingConfirm describes a change that is rolled back at a deadline unless it is confirmed.
type PendingConfirm struct {
	Revision uint64   `json:"revision"`
	Joined   []uint64 `json:"joined,omitempty"` // earlier revisions that are confirmed or rolled back together with Revision, oldest first
	Until    string   `json:"until"`            // by the daemon's clock, in RFC 3339 format
	Left     Duration `json:"left"`             // remaining time; 0: it is being rolled back
	Author
}

// Author is the user who made a change.
type Author struct {
	UID    int    `json:"uid"`
	User   string `json:"user,omitempty"`   // name of UID; empty: the UID has no name
	Method string `json:"method,omitempty"` // apply, replace, delete, reload, rollback; expire: not confirmed in time
}

// RollbackParams are the parameters of rollback, with either Revision or Undo.
type RollbackParams struct {
	// Revision is the revision to return to: the objects of all owners except file and cni are
	// restored to their state at that revision.
	Revision *uint64 `json:"revision,omitempty"`
	// Undo is the revision of the pending change: only this change is rolled back.
	Undo uint64 `json:"undo,omitempty"`
	// Owner limits the rollback to the objects of this owner; only with Revision.
	Owner string `json:"owner,omitempty"`
	Change
}

// ConfirmParams are the parameters of confirm.
type ConfirmParams struct {
	Revision uint64 `json:"revision"` // the pending change
}

// ConfirmResult is the result of confirm.
type ConfirmResult struct {
	Revision uint64 `json:"revision"` // is now permanent
}

// HistoryParams are the parameters of history.
type HistoryParams struct {
	// Revision selects one revision, with its changes; zero: all known revisions.
	Revision uint64 `json:"revision,omitempty"`
	Limit    int    `json:"limit,omitempty"` // 0: as many as fit in the reply
	Continue string `json:"continue,omitempty"`
}

// HistoryResult is the result of history.
type HistoryResult struct {
	Revision uint64         `json:"revision"`           // the daemon's
	Oldest   uint64         `json:"oldest"`             // the oldest revision that rollback can return to
	Items    []HistoryEntry `json:"items"`              // latest first; only Revision, if given
	Objects  []HistoryDiff  `json:"objects,omitempty"`  // changed objects, by kind and name
	Continue string         `json:"continue,omitempty"` // empty: this is the last page
}

// HistoryEntry describes one revision.
type HistoryEntry struct {
	Revision uint64 `json:"revision"`
	Previous uint64 `json:"previous"` // the revision before it
	Time     string `json:"time"`     // by the daemon's clock, in RFC 3339 format
	Author
	Owners   []string       `json:"owners,omitempty"`   // owners of the objects, at most 8 of them
	Summary  map[string]int `json:"summary"`            // number of changes by action
	Restored uint64         `json:"restored,omitempty"` // the revision that a rollback returned to
	Confirm  string         `json:"confirm,omitempty"`  // waiting, confirmed, rolled-back; empty: none
}

// HistoryDiff is what a revision changed in one object.
type HistoryDiff struct {
	ObjectChange
	Before *Object `json:"before,omitempty"` // nil: the object did not exist
	After  *Object `json:"after,omitempty"`  // nil: the object was deleted
	// Cut is set if Before and After are too large for a reply: get returns them if called with
	// this revision and with the previous one.
	Cut bool `json:"cut,omitempty"`
}
