// SPDX-License-Identifier: Apache-2.0

// Package inspect reads the state of the kernel: pins, attached programs, and other programs on the
// same devices. It needs no running data plane and changes nothing, except when a caller calls a
// Remove or Repin function of the result.
package inspect
