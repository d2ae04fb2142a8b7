// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// poolTable is the prefix of subnets' table names in the daemon's status.
const poolTable = "addresses "

func isPool(table string) bool { return strings.HasPrefix(table, poolTable) }

// checkPods checks the pod networks, and the owners of pods' addresses.
func (x *examiner) checkPods() {
	x.checkPools()
	x.checkLeases()
	for _, family := range []int{4, 6} {
		x.checkPodForwarding(family)
	}
}

func (x *examiner) checkPools() {
	if x.daemon.status == nil {
		return
	}
	for name, u := range x.daemon.status.Capacity {
		if !isPool(name) || u.Size == 0 || float64(u.Used) < float64(u.Size)*nearlyFull/100 {
			continue
		}
		severity := "warning"
		if u.Used >= u.Size {
			severity = "error"
		}
		x.find(severity, "addresses.full", "subnet "+strings.TrimPrefix(name, poolTable), words{
			what: fmt.Sprintf("has %d of %d addresses in use", u.Used, u.Size),
			why:  "when all are in use, pods cannot start",
			do:   "give the PodNetwork a larger subnet; llcli get podaddresses shows their owners, and which owners no longer exist",
		}, nil)
	}
}

// checkLeases reports addresses whose owner no longer exists, by network.
func (x *examiner) checkLeases() {
	gone := map[string][]string{}
	for _, l := range x.desired.leases {
		if l.Gone != "" {
			gone[l.Network] = append(gone[l.Network], fmt.Sprintf("%s of %s (%s)", strings.Join(l.Addresses, " "), l.ContainerID, l.Gone))
		}
	}
	for network, list := range gone {
		x.find("note", "addresses.gone", "PodNetwork/"+network, words{
			what: fmt.Sprintf("has %d leases whose owner no longer exists, such as %s", len(list), list[0]),
			why:  "their addresses are not assigned again until they are released",
			do:   "wait a few seconds and run doctor again; if they remain, run the garbage collection of the container runtime (CNI GC), or see the daemon's log",
		}, nil)
	}
}

// checkPodForwarding checks whether the host forwards packets, because it routes between pods and
// other hosts.
func (x *examiner) checkPodForwarding(family int) {
	if x.hostForwards(family) {
		return
	}
	for _, o := range x.desired.objects {
		v, ok := o.Value.(*state.PodNetwork)
		if !ok {
			continue
		}
		for _, subnet := range v.Subnets {
			if isFamily(subnet.Addr(), family) {
				x.findForwarding(family, "sysctl.pod_forwarding", o.Key.String()+" has "+subnet.String(),
					"the host routes nothing between pods and others: pods reach only each other and the host")
				return
			}
		}
	}
}
