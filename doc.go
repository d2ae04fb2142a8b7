// SPDX-License-Identifier: Apache-2.0

// Package loxilight holds nothing but the test of the project's layering.
package loxilight
