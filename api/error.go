// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
)

// JSON-RPC's own error codes, for requests that the daemon cannot interpret.
const (
	CodeParse          = -32700 // not JSON
	CodeInvalidRequest = -32600 // JSON, but not a JSON-RPC 2.0 request
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602 // parameters of the wrong shape
)

// Reason determines what a caller can do about an error.
type Reason string

// The reasons. A client treats an unknown reason as ReasonInternal.
const (
	ReasonInvalid     Reason = "invalid"     // (1) the request is wrong; do not repeat it
	ReasonNotFound    Reason = "not_found"   // (2) no such object
	ReasonConflict    Reason = "conflict"    // (3) held by another object, or the revision changed
	ReasonCapacity    Reason = "capacity"    // (4) a table is full
	ReasonDenied      Reason = "denied"      // (5) the user may not do this
	ReasonUnsupported Reason = "unsupported" // (6) this data plane cannot do it
	ReasonUnavailable Reason = "unavailable" // (7) not now; repeat later
	ReasonTimeout     Reason = "timeout"     // (8) durable, but not Ready in time
	ReasonInternal    Reason = "internal"    // (9) a bug in the daemon, or an error of the kernel
)

// Code returns the number of the reason in an error reply.
func (r Reason) Code() int {
	switch r {
	case ReasonInvalid:
		return 1
	case ReasonNotFound:
		return 2
	case ReasonConflict:
		return 3
	case ReasonCapacity:
		return 4
	case ReasonDenied:
		return 5
	case ReasonUnsupported:
		return 6
	case ReasonUnavailable:
		return 7
	case ReasonTimeout:
		return 8
	default:
		return 9
	}
}

// Error is the error in a reply. Make one with [Errorf].
type Error struct {
	Code    int        `json:"code"`
	Message string     `json:"message"` // for people
	Data    *ErrorData `json:"data,omitempty"`
}

// ErrorData is the machine-readable part of an error.
type ErrorData struct {
	Reason Reason `json:"reason"`
	Object string `json:"object,omitempty"` // Kind/name
	Field  string `json:"field,omitempty"`  // such as spec.backends[3].address
	// NotReady lists the objects that kept a request waiting until its timeout.
	NotReady []NotReady `json:"notReady,omitempty"`
	// Others are further objects of the request that are invalid by themselves, at most nine of
	// them.
	Others []ObjectError `json:"others,omitempty"`
	// CNICode is the code that the plugin must report to the runtime, for errors of cni.
	CNICode int `json:"cniCode,omitempty"`
}

// ObjectError is the reason why one object is rejected.
type ObjectError struct {
	Object  string `json:"object"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Reason returns the error's reason; JSON-RPC's own codes are ReasonInvalid.
func (e *Error) Reason() Reason {
	switch {
	case e.Data != nil:
		return e.Data.Reason
	case e.Code < 0:
		return ReasonInvalid
	default:
		return ReasonInternal
	}
}

// Errorf makes an error with a reason. %w is not supported: only the text is sent to the client.
func Errorf(reason Reason, format string, args ...any) *Error {
	return &Error{Code: reason.Code(), Message: fmt.Sprintf(format, args...), Data: &ErrorData{Reason: reason}}
}

// At returns a copy of e that names the object and the field, both of which may be empty, in its
// data and at the beginning of its message.
func (e *Error) At(object, field string) *Error {
	c := *e
	d := ErrorData{Reason: e.Reason()}
	if e.Data != nil {
		d = *e.Data
	}
	d.Object, d.Field = object, field
	c.Data = &d
	head := object
	if field != "" {
		if head != "" {
			head += ": "
		}
		head += field
	}
	if head != "" {
		c.Message = head + ": " + e.Message
	}
	return &c
}

// ObjectTooLarge returns the error for an object that is larger than [MaxObject]. size is the
// number of bytes that the object takes up in a request or reply.
func ObjectTooLarge(kind, name string, size int) *Error {
	advice := "split it into several objects"
	switch kind {
	case KindAddressGroup:
		advice = "split it into several AddressGroups, which can be members of one: group:NAME"
	case KindFirewallRule, KindNAT:
		advice = "put addresses into AddressGroups, and match group:NAME"
	case KindService:
		advice = "use several Services"
	}
	return Errorf(ReasonInvalid, "the object takes up %d bytes of a message, at most %d fit: %s", size, MaxObject, advice).
		At(ObjectRef{Kind: kind, Name: name}.String(), "spec")
}

// FromError is the only place where errors become codes: an [*Error] is returned unchanged; any
// other error becomes internal.
func FromError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(ReasonInternal, "%v", err)
}
