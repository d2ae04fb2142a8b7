// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// Located is an error from the daemon, with the place in a file that it concerns.
type Located struct {
	Place  string
	Err    error
	Others []api.ObjectError // errors about other objects, with the places in their messages
}

func (e *Located) Error() string { return e.Place + ": " + e.Err.Error() }
func (e *Located) Unwrap() error { return e.Err }

// IsUnreachable reports whether err means that the daemon cannot be reached.
func IsUnreachable(err error) bool {
	return errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrPermission) || errors.Is(err, client.ErrNotAnswering)
}

// UsageError is an error in the command line.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a [UsageError].
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Silent ends a command that has printed everything already.
type Silent struct{ Code int }

func (e *Silent) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// ErrFailed ends a command whose output has reported the failure.
var ErrFailed = &Silent{1}
