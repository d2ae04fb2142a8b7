// SPDX-License-Identifier: Apache-2.0

// Package ebpf is the data plane that runs in the kernel as eBPF programs. It loads, pins and
// attaches the programs, writes the tables that they read, and deletes expired connections, which
// they create. It holds no desired state: after a restart it takes over the pins.
package ebpf
