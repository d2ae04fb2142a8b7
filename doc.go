// SPDX-License-Identifier: Apache-2.0

// Package loxilight holds what several parts of the project read from its source, and the tests of
// the project's layering and documents.
package loxilight
