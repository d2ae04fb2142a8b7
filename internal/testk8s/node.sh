#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Process 1 of a node: mounts the node's own file systems, and keeps containerd and the kubelet
# running. NODE is its name, DIR its folder, KUBELET the program, ARGS its flags.
set -e
hostname "$NODE"
mount -t proc proc /proc
# A sysfs that shows this network namespace, with the machine's cgroups on it.
mount --rbind /sys/fs/cgroup "$DIR/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$DIR/cgroup" /sys/fs/cgroup
umount -l "$DIR/cgroup"
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
mount --make-rshared /
# The node's folders are mounted over the machine's folders, which stay unchanged.
for d in var/lib opt var/log; do
	mkdir -p "$DIR/fs/$d"
	mount --bind "$DIR/fs/$d" "/$d"
done
mkdir -p "$DIR/etc"
mount -t tmpfs tmpfs "$DIR/etc"
mkdir "$DIR/etc/upper" "$DIR/etc/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$DIR/etc/upper,workdir=$DIR/etc/work" overlay /etc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /opt/cni/bin && cp /usr/lib/cni/loopback /opt/cni/bin/ # which containerd also requires
mkdir -p /run/netns /run/lock /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers
echo "nameserver 127.0.0.1" >"$DIR/resolv.conf" # look-ups fail at once
mount --bind "$DIR/resolv.conf" /etc/resolv.conf
# The kubelet writes these settings of the whole machine: mount its own files over them.
for f in vm/overcommit_memory:1 kernel/panic:10 kernel/panic_on_oops:1; do
	t=/run/sysctl-$(echo "${f%:*}" | tr / -)
	echo "${f#*:}" >"$t"
	mount --bind "$t" "/proc/sys/${f%:*}"
done
set +e
keep() { # name command...
	local name=$1
	shift
	while :; do
		"$@" >>"$DIR/$name.log" 2>&1
		echo "--- $name ended with $?" >>"$DIR/$name.log"
		sleep 1
	done
}
keep containerd containerd --config "$DIR/containerd.toml" &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
for image in $IMAGES; do
	ctr -n k8s.io images import "$image" >>"$DIR/images.log" 2>&1 || exit 1
done
# shellcheck disable=SC2086 # several flags
keep kubelet "$KUBELET" $ARGS &
wait
