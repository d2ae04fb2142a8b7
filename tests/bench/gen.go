// SPDX-License-Identifier: Apache-2.0

package main

//go:generate go tool bpf2go -cc clang-19 -target bpfel -tags linux -cflags "-O2 -g -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" traffic bpf/traffic.bpf.c
