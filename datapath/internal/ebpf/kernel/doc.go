// SPDX-License-Identifier: Apache-2.0

// Package kernel contains what the programs in the kernel and the daemon share: the compiled
// programs, the types of keys and values of their maps, the maps as typed tables, and the encoding
// of addresses, ports, names and times in them.
package kernel

import "github.com/cilium/ebpf"

//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -type algorithm -type source_mode -type ct_state -type epoch_of -type ct4_key -type ct6_key -type ct_more -type ct4 -type ct6 -type ct4_block -type ct6_block -type backend -type backend_total -type backend_entry -type traffic -type ct_size -type verdict_count -type shares -type addr -type sample -type sample_type -type nat_rule -type nat_prefix -type tunnel_type -type peer_name -type nexthop_flag -type device_flag -type netfilter_flag -type bridge_port_flag -type guard_flag -type ct_flag -type announced_flag -type nat_flag -type backend_flag -type rule_flag -type rules_flag -type rule_set -type service_addr_flag -type service_flag -type prefix_flag -type mirror_flag -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" kernel ../../../../ebpf-src/tc_ingress.bpf.c
//go:generate sed -i -E s/\bkernel([A-Z])/\1/g kernel_bpfel.go
//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Shortest ../../../../ebpf-src/xdp.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -no-global-types -type slowpath_reason -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Egress ../../../../ebpf-src/tc_egress.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -no-global-types -type expire -type expire_result -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Expirer ../../../../ebpf-src/expire.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Mirrors ../../../../ebpf-src/mirror.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package kernel -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" Names ../../../../ebpf-src/names.bpf.c

// LoadKernel returns the program on the ingress hook, with all maps. Its types and constants have no
// prefix in this package.
func LoadKernel() (*ebpf.CollectionSpec, error) {
	spec, err := parseKernel()
	if err == nil {
		spec.Maps[MapLlSlow].Contents = []ebpf.MapKV{{Key: uint32(0), Value: ProgLlTcSlow}}
	}
	return spec, err
}
