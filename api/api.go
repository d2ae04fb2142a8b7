// SPDX-License-Identifier: Apache-2.0

// Package api is the protocol between loxilightd and its clients: JSON-RPC 2.0 requests and replies
// over a nanomsg REQ/REP socket, and events over PUB/SUB. docs/api.md is the same contract in
// prose. The package only contains types and names; it neither dials nor listens (see api/client),
// and imports no other package of the project.
package api

import "encoding/json"

// Version is the version of the contract. It changes when an old client would misread a new daemon,
// or vice versa.
const Version = 1

// Default addresses of the daemon's sockets, as nanomsg URLs.
const (
	ControlSocket = "ipc:///run/loxilight/control.sock" // REQ/REP
	EventsSocket  = "ipc:///run/loxilight/events.sock"  // PUB/SUB
)

// Limits of the channel, in bytes.
const (
	MaxRequest = 1 << 20 // the client and the daemon reject a longer request
	MaxReply   = 1 << 20 // nanomsg's default limit for received messages
	// MaxObject is the maximum size of an object: it must fit in a reply along with its status or
	// its counters.
	MaxObject = MaxReply - 2<<10
)

// Request is one JSON-RPC 2.0 call. A request without ID is a notification: it is executed, and
// answered with a reply whose ID is null, since a REP socket must always reply.
type Request struct {
	JSONRPC string          `json:"jsonrpc"` // "2.0"
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params,omitempty"` // an object
}

// Reply answers one Request: it has a Result or an Error, never both.
type Reply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// Method names.
const (
	MethodVersion          = "version"
	MethodStatus           = "status"
	MethodApply            = "apply"
	MethodReplace          = "replace"
	MethodDelete           = "delete"
	MethodGet              = "get"
	MethodList             = "list"
	MethodChanges          = "changes"
	MethodReload           = "reload" // reads the object files again; an addition to the first contract
	MethodConnectionsList  = "connections.list"
	MethodConnectionsFlush = "connections.flush"
	MethodCounters         = "counters"
	MethodNetworkList      = "network.list"
	MethodAddressesList    = "addresses.list"
	MethodCapacity         = "capacity"
	MethodPoliciesCheck    = "policies.check"
	MethodPoliciesFor      = "policies.for"
	MethodPoliciesUnused   = "policies.unused"
	MethodPoliciesCompare  = "policies.compare"
	MethodEventsList       = "events.list" // an addition to the first contract
)

// Change contains the parameters that apply, replace, delete and rollback share.
type Change struct {
	// DryRun does everything except commit, and returns the same errors and changes.
	DryRun bool `json:"dryRun,omitempty"`
	// Wait delays the answer until the change is in force in the data plane, for at most this long;
	// after that, the error is timeout. Zero: answer when the change is durable.
	Wait Duration `json:"wait,omitempty"`
	// Confirm rolls the change back after this time (1s to 1h), even if the daemon restarts,
	// unless it is confirmed by the method confirm.
	Confirm Duration `json:"confirm,omitempty"`
	// Force makes the change even if it deletes or changes an Interface whose device other objects
	// need: rules then do not see that device's packets, or Services and Tunnels receive none.
	Force bool `json:"force,omitempty"`
	// IfRevision makes the change fail with conflict unless the daemon is still at that revision.
	// Nil: no condition.
	IfRevision *uint64 `json:"ifRevision,omitempty"`
	// RequestID makes the change happen at most once: a second request with the same id by the same
	// user gets the answer to the first. At most 128 bytes.
	RequestID string `json:"requestID,omitempty"`
	// Transaction collects a change that is larger than one request: requests with the same method
	// and Transaction and with More set only add their objects; the request without More commits
	// all of them. A transaction that is not continued for 30 seconds, or is interrupted by a
	// restart of the daemon, is discarded: its commit fails with conflict, so that part of a change
	// is never committed as if it were the whole. At most 128 bytes.
	Transaction string `json:"transaction,omitempty"`
	More        bool   `json:"more,omitempty"`
	// ChangesFrom is the index of the first change to list in the answer to a dry run whose list of
	// changes did not fit in one reply.
	ChangesFrom int `json:"changesFrom,omitempty"`
}

// ApplyParams are the parameters of apply.
type ApplyParams struct {
	Objects []Object `json:"objects"`
	Change
}

// ReplaceParams are the parameters of replace: Owner's objects of Kinds become exactly Objects.
type ReplaceParams struct {
	Owner   string   `json:"owner"`
	Kinds   []string `json:"kinds"`
	Objects []Object `json:"objects"`
	Change
}

// DeleteParams are the parameters of delete.
type DeleteParams struct {
	Objects []ObjectRef `json:"objects"`
	Change
}

// Actions of an [ObjectChange].
const (
	ActionCreated   = "created"
	ActionUpdated   = "updated"
	ActionUnchanged = "unchanged"
	ActionDeleted   = "deleted"
	ActionAbsent    = "absent" // the object to be deleted does not exist
)

// ObjectChange is the result for one object.
type ObjectChange struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Action string `json:"action"`
}

// ChangeResult is the result of apply, replace and delete.
type ChangeResult struct {
	// Revision under which the change is durable; unchanged if nothing changed.
	Revision uint64 `json:"revision"`
	// Changes of the objects in the order of the request, deletions last.
	Changes []ObjectChange `json:"changes"`
	// Summary counts all changes by action, including those that are not listed.
	Summary map[string]int `json:"summary,omitempty"`
	// Truncated is set if Changes did not fit in the reply. The rest is returned by the method
	// changes or, for a dry run, by repeating the request with ChangesFrom.
	Truncated bool `json:"truncated,omitempty"`
	// Confirm is the deadline by which the change must be confirmed; nil: the change is final.
	Confirm *PendingConfirm `json:"confirm,omitempty"`
	// Left names at most 100 objects that a rollback did not restore although they differ from the
	// revision that it returned to: objects from files, and pods' objects.
	Left []ObjectRef `json:"left,omitempty"`
	// Warnings names objects that no longer have an effect on packets.
	Warnings []string `json:"warnings,omitempty"`
	// Staged counts the objects collected so far, in the answer to a request with More.
	Staged int `json:"staged,omitempty"`
}

// GetParams are the parameters of get.
type GetParams struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Revision uint64 `json:"revision,omitempty"` // return the object of this revision, without status; 0: the current object
}

// ListParams are the parameters of list. Items are sorted by name.
type ListParams struct {
	Kind     string            `json:"kind"`
	Owner    string            `json:"owner,omitempty"`  // empty: all
	Labels   map[string]string `json:"labels,omitempty"` // all must be equal; empty: all
	Limit    int               `json:"limit,omitempty"`  // 0: as many as fit in the reply
	Continue string            `json:"continue,omitempty"`
}

// ListResult is the result of list.
type ListResult struct {
	Revision uint64   `json:"revision"`
	Items    []Object `json:"items"`
	Continue string   `json:"continue,omitempty"` // empty: this is the last page
}

// ChangesParams are the parameters of changes.
type ChangesParams struct {
	Since uint64 `json:"since"` // a revision
	Limit int    `json:"limit,omitempty"`
}

// ChangesResult is the result of changes. If Expired is set, the daemon no longer knows the changes
// since the requested revision: list the objects again.
type ChangesResult struct {
	Revision uint64          `json:"revision"` // revision of the last change in this result: the next Since
	Changes  []RevisedChange `json:"changes"`
	More     bool            `json:"more,omitempty"` // request again with Since = Revision
	Expired  bool            `json:"expired,omitempty"`
}

// RevisedChange is a change to one object, and the revision in which it happened.
type RevisedChange struct {
	Revision uint64 `json:"revision"`
	ObjectChange
}

// CountersParams are the parameters of counters. Without Kind and Name the result contains the
// node's counters.
type CountersParams struct {
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
}

// CountersResult is the result of counters. Counters start when the object's entry in the data
// plane is created, and continue across restarts of the daemon.
type CountersResult struct {
	Packets     uint64               `json:"packets"`
	Bytes       uint64               `json:"bytes"`                 // counting whole frames
	Connections uint64               `json:"connections,omitempty"` // opened so far
	Drops       map[string]uint64    `json:"drops"`                 // packets by reason; for the node, an Interface or an Endpoint, reasons that never occurred are included
	Verdicts    map[string]uint64    `json:"verdicts,omitempty"`    // node only: packets by verdict
	Backends    []BackendCounters    `json:"backends,omitempty"`    // Service only
	Rules       []PolicyRuleCounters `json:"rules,omitempty"`       // Policy only
	// Sent and Received are set for a Tunnel or Peer only: packets into the tunnel, and packets out
	// of it.
	Sent     *Traffic `json:"sent,omitempty"`
	Received *Traffic `json:"received,omitempty"`
	// Dropped is set for a Tunnel or Peer, whose drop reasons are counted for the node, and for a
	// Mirror: copies that could not be sent.
	Dropped uint64 `json:"dropped,omitempty"`
}

// BackendCounters are the counters of one backend of a Service.
type BackendCounters struct {
	Address     string `json:"address"`
	Connections uint64 `json:"connections"` // opened so far
	Active      uint64 `json:"active"`      // currently tracked
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
}

// PolicyRuleCounters are the decisions of a rule of a Policy, or of its isolation, about packets that
// open connections, that are denied, or that belong to no connection; of a staged Policy: the
// decisions that it would have made.
type PolicyRuleCounters struct {
	Direction   string `json:"direction"`             // ingress, egress
	Rule        string `json:"rule,omitempty"`        // its name, or its number from 1; empty: isolation
	Action      string `json:"action"`                // allow, deny, reject, pass
	Connections uint64 `json:"connections,omitempty"` // new connections that passed
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"` // counting whole frames
	// Since is when counting began. Empty: the rule decides about no packet of an Endpoint of this node.
	Since string `json:"since,omitempty"`
	Last  string `json:"last,omitempty"` // time of the last decision; empty: none
}

// VersionResult is the result of version.
type VersionResult struct {
	Version string `json:"version"` // the daemon's version
	API     []int  `json:"api"`     // supported versions of the contract
	Build   string `json:"build"`   // Go version, platform and commit
}

// StatusResult is the result of status.
type StatusResult struct {
	Instance string `json:"instance"`
	StateDir string `json:"stateDir,omitempty"` // the daemon's state directory
	// Switch is the switch's network namespace; "host" means that it is the host's.
	Switch   string           `json:"switch,omitempty"`
	PID      int              `json:"pid"`
	Uptime   Duration         `json:"uptime"`
	Revision uint64           `json:"revision"`
	Datapath DatapathStatus   `json:"datapath"`
	Capacity map[string]Usage `json:"capacity"` // by table
	Health   Health           `json:"health"`
	Objects  map[string]int   `json:"objects"`            // count by kind
	NotReady []NotReady       `json:"notReady,omitempty"` // at most 20
	Confirm  *PendingConfirm  `json:"confirm,omitempty"`  // the change that waits to be confirmed; nil: none
	// Repairs counts the external changes to our state in the data plane that have been repaired
	// since the daemon started.
	Repairs uint64 `json:"repairs"`
}

// StatusParams are the parameters of status.
type StatusParams struct {
	// Ignore lists the kinds whose objects do not affect the health.
	Ignore []string `json:"ignore,omitempty"`
}

// DatapathStatus describes what the data plane runs on.
type DatapathStatus struct {
	Kernel    string            `json:"kernel"`
	Layout    int               `json:"layout"`              // version of the pinned maps
	Hooks     []Hook            `json:"hooks"`               // attached programs
	Fallbacks map[string]string `json:"fallbacks,omitempty"` // unused features, with the reason
}

// Hook is one program attached to one device.
type Hook struct {
	Device  string `json:"device"`
	Netns   string `json:"netns"`
	Hook    string `json:"hook"` // tcx-ingress, tcx-egress, tc-ingress, tc-egress
	Program string `json:"program"`
	ID      uint32 `json:"id"` // the kernel's program id
}

// Usage is how full a table is.
type Usage struct {
	Used uint64 `json:"used"`
	Size uint64 `json:"size"`
}

// Health is the daemon's assessment of itself.
type Health struct {
	State    string   `json:"state"` // ok, degraded
	Messages []string `json:"messages,omitempty"`
}

// NotReady names an object that is not in force in the data plane yet.
type NotReady struct {
	Object  string `json:"object"` // Kind/name
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// ReloadResult is the result of reload.
type ReloadResult struct {
	ChangeResult
	Files []string `json:"files"` // the files that were read, in order
}
