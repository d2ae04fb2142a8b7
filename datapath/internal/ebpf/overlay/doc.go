// SPDX-License-Identifier: Apache-2.0

// Package overlay maintains the tables of tunnels and peers, with which the programs encapsulate
// and decapsulate packets. It creates no devices and no routes: package network does.
package overlay
