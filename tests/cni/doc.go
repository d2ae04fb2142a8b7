// SPDX-License-Identifier: Apache-2.0

// Package cni runs loxilight-cni as container runtimes do, through the library of the specification
// (libcni, which cnitool and containerd use), together with Debian's plugins, with a real daemon
// and real pod network namespaces.
package cni
