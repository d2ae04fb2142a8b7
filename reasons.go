// SPDX-License-Identifier: Apache-2.0

package loxilight

import _ "embed" // for DropReasons and Findings

// DropReasons is ebpf-src/drop.h: the reasons of drops and the verdicts, each with a comment that
// describes it to users.
//
//go:embed ebpf-src/drop.h
var DropReasons string

// Findings is docs/findings.md: what llcli doctor finds, each in a row of a table that describes it
// to users.
//
//go:embed docs/findings.md
var Findings string
