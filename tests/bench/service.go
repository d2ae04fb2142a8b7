// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// service is one service, as configured on every path that has services.
type service struct {
	name      string
	address   string
	protocols []string
	backends  []string // addresses
	port      int      // of the backends
}

// servicesFor returns count services with the given number of backends each. Their addresses are
// consecutive; all have the same backend addresses, and each has its own backend port.
func servicesFor(p place, count, backends int, protocols ...string) []service {
	list := make([]service, count)
	for i := range list {
		list[i] = service{
			name:      fmt.Sprintf("%s-%d", map[place]string{onNode: "near", elsewhere: "far"}[p], i),
			address:   addressAt(frontendFirst[p], i),
			protocols: protocols,
			port:      backendPort + i,
		}
		for b := range backends {
			list[i].backends = append(list[i].backends, addressAt(backendFirst[p], b))
		}
	}
	return list
}
