// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ownerK8s owns the objects of the agent. A Kubernetes Service without endpoints is normal.
const ownerK8s = "k8s"

func (w *world) ofService(o *state.Object, v *state.Service) condition {
	for family, is4 := range []bool{true, false} {
		fronts := slices.ContainsFunc(v.Frontends, func(f datapath.Frontend) bool { return f.Addr.Addr().Is4() == is4 })
		if !fronts {
			continue
		}
		total, active, unhealthy, unknown := 0, 0, 0, 0
		for i := range v.Backends {
			b := &v.Backends[i]
			if b.Addr.Addr().Is4() != is4 {
				continue
			}
			total++
			if b.State != datapath.BackendActive || b.Weight == 0 {
				continue
			}
			if v.Health != nil {
				switch w.n.checker.Result(o.Name, b.Addr).State {
				case health.Unhealthy:
					unhealthy++
					continue
				case health.Unknown:
					unknown++
				}
			}
			active++
		}
		what := [2]string{"IPv4", "IPv6"}[family]
		quiet := o.Owner == ownerK8s
		switch {
		case active > 0 && active == unknown:
			return condition{message: fmt.Sprintf("no %s backend has been checked yet", what), quiet: true, untried: true}
		case active > 0:
		case unhealthy > 0:
			return condition{message: fmt.Sprintf("no %s backend takes connections, %d unhealthy: see llcli describe service %s", what, unhealthy, o.Name), quiet: quiet}
		case total > 0:
			return condition{message: fmt.Sprintf("no %s backend takes connections: all %d are draining, down or of weight 0", what, total), ready: true, quiet: quiet}
		default:
			return condition{message: fmt.Sprintf("no %s backend is configured, so connections are not accepted", what), ready: true, quiet: quiet}
		}
	}
	return condition{}
}
