// SPDX-License-Identifier: Apache-2.0

package output

import "github.com/loxilight/loxilight/api"

// ActionColor is the colour of an action on an object.
func ActionColor(action string) string {
	switch action {
	case api.ActionCreated:
		return Green
	case api.ActionUpdated:
		return Yellow
	case api.ActionDeleted:
		return Red
	default:
		return ""
	}
}

// ConfirmColor is the colour of the state of a change that must be confirmed.
func ConfirmColor(confirm string) string {
	switch confirm {
	case "waiting":
		return Yellow
	case "rolled-back":
		return Red
	case "confirmed":
		return Green
	}
	return ""
}

// Painter wraps text in a colour if it is true.
type Painter bool

// Painter returns the painter of a run: colours are for terminals.
func (p *Printer) Painter() Painter {
	return Painter(p.width() > 0 && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb")
}

// Paint returns text in a colour.
func (p Painter) Paint(color, text string) string {
	if !p || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// StateDeleted is the state of a deleted object in a watch.
const StateDeleted = "Deleted"

// StateColor is the colour of a state of an object, a backend or the daemon.
func StateColor(state string) string {
	switch state {
	case api.StateReady, "ok", "healthy", "active":
		return Green
	case api.StatePending, "draining", "unknown", "degraded", api.TableFilling:
		return Yellow
	case api.StateError, "down", "unhealthy", StateDeleted:
		return Red
	default:
		return ""
	}
}
