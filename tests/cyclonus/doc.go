// SPDX-License-Identifier: Apache-2.0

// Package cyclonus runs the cases of github.com/mattfenwick/cyclonus against a cluster of real agents,
// daemons and pods in network namespaces; make cyclonus runs it. It is a module of its own, so that the
// programs and their tests do not depend on cyclonus.
package cyclonus
