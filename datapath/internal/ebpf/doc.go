// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the data plane that runs in the kernel as eBPF programs. It loads, pins and
// attaches them, writes the tables of services and devices that they read, and deletes expired
// connections, which they create. It holds no desired state: after a restart it takes over the
// pins.
package ebpf

//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -type algorithm -type source_mode -type ct_state -type ct_meta -type verdict_count -type shares -type addr -type sample -type sample_type -type nat_rule -type nat_prefix -type tunnel_type -type peer_name -type nexthop_flag -type device_flag -type netfilter_flag -type bridge_port_flag -type guard_flag -type ct_flag -type announced_flag -type nat_flag -type backend_flag -type rule_flag -type rules_flag -type service_addr_flag -type service_flag -type prefix_flag -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" kernel ../../../ebpf-src/tc_ingress.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -no-global-types -cflags "-O2 -g -Wall -Werror -Wno-unused-function -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" shortest ../../../ebpf-src/xdp.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -no-global-types -type slowpath_reason -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" egress ../../../ebpf-src/tc_egress.bpf.c
//go:generate go tool bpf2go -cc clang-19 -go-package ebpf -target bpfel -tags linux -no-global-types -type expire -type expire_result -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" expirer ../../../ebpf-src/expire.bpf.c
