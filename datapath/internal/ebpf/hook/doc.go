// SPDX-License-Identifier: Apache-2.0

// Package hook loads the programs into network namespaces, and attaches them to the hooks of
// devices: tcx links or cls_bpf filters, and XDP. Everything that is attached is pinned in a folder
// that the caller chooses. The package neither decides which devices have programs nor monitors
// them.
package hook
