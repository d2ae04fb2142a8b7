// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// coded returns an error with the code that the plugin passes to the runtime.
func coded(reason api.Reason, code int, format string, args ...any) *api.Error {
	e := api.Errorf(reason, format, args...)
	e.Data.CNICode = code
	return e
}

func unavailable(format string, args ...any) *api.Error {
	return coded(api.ReasonUnavailable, api.CNITryAgain, format, args...)
}

func failed(format string, args ...any) *api.Error {
	return coded(api.ReasonInternal, api.CNIFailed, format, args...)
}

// badConfig returns an error about a configuration field.
func badConfig(field, format string, args ...any) *api.Error {
	e := coded(api.ReasonInvalid, api.CNIConfigInvalid, format, args...)
	return e.At("", field)
}

// badEnvironment returns an error about an environment variable of the plugin.
func badEnvironment(name, format string, args ...any) *api.Error {
	return coded(api.ReasonInvalid, api.CNIEnvironmentInvalid, format, args...).At("", name)
}

// linkError converts an error from [datapath.PodLinks] to an error for the runtime.
func linkError(err error) *api.Error {
	switch {
	case errors.Is(err, datapath.ErrNetns):
		return badEnvironment("CNI_NETNS", "%v", err)
	case errors.Is(err, datapath.ErrAbsent), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unavailable("%v", err)
	case errors.Is(err, datapath.ErrExists):
		return coded(api.ReasonConflict, api.CNIEnvironmentInvalid, "%v", err).At("", "CNI_IFNAME")
	}
	return failed("%v", err)
}

// addressError converts an error from [Addresses] to an error for the runtime; field is the
// configuration field that requests the addresses.
func addressError(err error, field string) *api.Error {
	switch {
	case errors.Is(err, ipam.ErrNetwork):
		return unavailable("%v", err)
	case errors.Is(err, ipam.ErrFull):
		return coded(api.ReasonCapacity, api.CNITryAgain, "%v", err)
	case errors.Is(err, ipam.ErrTaken):
		return coded(api.ReasonConflict, api.CNITryAgain, "%v", err).At("", field)
	case errors.Is(err, ipam.ErrAddress):
		return badConfig(field, "%v", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unavailable("%v", err)
	}
	return failed("addresses: %v", err)
}
