#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Says what kube-proxy and other CNI plugins left on this node, and with --do removes it:
# rules of nftables and iptables, devices, configurations of the runtime. What is
# neither's stays, and so do the rules of the kubelet. Run as root on a node that has no
# pods of the other plugin any more: it was drained.
set -eu
doing=
case "${1-}" in
'') ;;
--do) doing=1 ;;
*)
	echo "usage: $0 [--do]" >&2
	exit 2
	;;
esac
conf=${CNI_CONF_DIR:-/etc/cni/net.d}

act() {
	echo "$*"
	[ -z "$doing" ] || "$@"
}

for family in ip ip6; do
	if nft list table "$family" kube-proxy >/dev/null 2>&1; then
		act nft delete table "$family" kube-proxy
	fi
done

# Chains by the beginnings of their names; rules that are in them, or lead to them.
chains='KUBE-(SERVICES|SVC-|SEP-|EXT-|XLB-|FW-|SVL-|NODEPORTS|NODE-PORT|EXTERNAL-SERVICES|POSTROUTING|FORWARD|PROXY-|LOAD-BALANCER|SOURCE-RANGES|MARK-MASQ)|CNI-|FLANNEL-|cali-|CILIUM_|OLD_CILIUM_|WEAVE|ANTREA-|KUBE-ROUTER-'
for tool in iptables ip6tables iptables-legacy ip6tables-legacy; do
	command -v "$tool-save" >/dev/null || continue
	rules=$("$tool-save" 2>/dev/null) || continue
	count=$(printf '%s\n' "$rules" | grep -Ec -e "^:($chains)" || true)
	[ "$count" -gt 0 ] || continue
	echo "$tool: $count chains"
	[ -z "$doing" ] || printf '%s\n' "$rules" | grep -Ev -e "^:($chains)" -e "^-A ($chains)" -e "(-j|-g) ($chains)" | "$tool-restore"
done

for device in kube-ipvs0 cni0 flannel.1 flannel-v6.1 vxlan.calico vxlan-v6.calico weave cilium_host cilium_net cilium_vxlan antrea-gw0 kube-bridge; do
	[ ! -e "/sys/class/net/$device" ] || act ip link delete "$device"
done
for path in /sys/class/net/cali* /sys/class/net/lxc*; do
	[ ! -e "$path" ] || act ip link delete "${path##*/}"
done

for file in "$conf"/*.conflist "$conf"/*.conf "$conf"/*.json; do
	if [ -e "$file" ] && ! grep -q '"loxilight-cni"' "$file"; then
		act mv "$file" "$file.replaced"
	fi
done
[ -n "$doing" ] || echo "nothing was changed: $0 --do does all this"
