// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Policies implements [datapath.DataPlane].
func (d *DataPlane) Policies() datapath.Table[datapath.SetName, *policy.State] {
	panic("merged later")
}
