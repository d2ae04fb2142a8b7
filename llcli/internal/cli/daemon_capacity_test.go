// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"time"

	"github.com/loxilight/loxilight/api"
)

// capacityOf answers the method capacity.
func capacityOf(p api.CapacityParams) (any, *api.Error) {
	if p.Owners < 0 || p.Owners > 100 {
		return nil, api.Errorf(api.ReasonInvalid, "%d is not from 0 to 100", p.Owners).At("", "owners")
	}
	grown, shrunk, none := int64(41_200), int64(-1200), int64(0)
	soon := api.Duration(21*time.Minute + 40*time.Second)
	owners := []api.TableOwner{
		{By: api.OwnerSource, Name: "203.0.113.7", Used: 410_000},
		{By: api.OwnerSource, Name: "203.0.113.9", Used: 1200, AtLeast: true},
		{By: api.OwnerObject, Name: "Service/web", Used: 612_000},
	}
	return api.CapacityResult{Tables: []api.TableCapacity{
		{
			Name: "connections IPv4", Unit: "entries", Usage: api.Usage{Used: 870_221, Size: 1_048_576}, Growth5m: &grown, Growth1h: &shrunk,
			FullIn: &soon, Setting: "tables.connections", Owners: owners[:min(p.Owners, len(owners))],
		},
		{Name: "connections IPv6", Unit: "entries", Usage: api.Usage{Size: 1_048_576}, Growth5m: &none, Setting: "tables.connections"},
		{Name: "memory", Unit: "bytes", Usage: api.Usage{Used: 3 << 30, Size: 4 << 30}},
	}}, nil
}
