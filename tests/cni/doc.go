// SPDX-License-Identifier: Apache-2.0

// Package cni runs loxilight-cni as container runtimes do, by the library of the
// specification (libcni, which cnitool and containerd are made with), beside Debian's
// plugins, with a real daemon and real pods' namespaces.
package cni
