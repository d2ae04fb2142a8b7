#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lists the remains of kube-proxy and other CNI plugins on this node, and with --do removes them:
# rules of nftables, iptables and ipvs, programs, devices, routes, configurations of the runtime.
# Everything else stays, including the rules of the kubelet. At the end, it lists what it could not
# remove, or could not inspect because a program is missing. Run it as root on a drained node, which
# no longer has pods of the other plugin.
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
bpf=/sys/fs/bpf
left=
newline='
'

# left_is records a message for the end.
left_is() {
	left="$left$newline""left: $*"
}

# act prints a command, and runs it with --do; a failure is recorded, and the script continues.
act() {
	echo "$*"
	[ -z "$doing" ] || "$@" || left_is "this failed: $*"
}

has() {
	command -v "$1" >/dev/null
}

# each runs a command for each line of a text, with the words of the line as last arguments.
each() {
	text=$1
	shift
	while IFS= read -r line; do
		# shellcheck disable=SC2086 # words
		[ -z "$line" ] || "$@" $line </dev/null
	done <<-EOF
		$text
	EOF
}

# Traces of a plugin; checked before any of them is removed.
cilium=''
calico=''
ipvs=''
for path in "$bpf"/cilium "$bpf"/tc/globals/cilium_* /sys/class/net/cilium_*; do
	[ ! -e "$path" ] || cilium=1
done
for path in /sys/class/net/cali* /sys/class/net/vxlan.calico /sys/class/net/vxlan-v6.calico; do
	[ ! -e "$path" ] || calico=1
done
for path in /sys/class/net/kube-ipvs0 /sys/class/net/kube-dummy-if; do
	[ ! -e "$path" ] || ipvs=1
done

if has nft; then
	tables=$(nft list tables 2>/dev/null | grep -E '^table (ip|ip6|inet|arp) (kube-proxy|flannel-ipv4|flannel-ipv6|calico)$') || tables=
	case "$tables" in *calico*) calico=1 ;; esac
	each "$tables" act nft delete
else
	left_is "rules of nftables, if any: they cannot be inspected without nft; install it, or reboot the node"
fi

# Chains, by the prefixes of their names; rules that are in them, or lead to them.
chains='KUBE-(SERVICES|SVC-|SEP-|EXT-|XLB-|FW-|SVL-|NODEPORTS|NODE-PORT|EXTERNAL-SERVICES|POSTROUTING|FORWARD|PROXY-|LOAD-BALANCER|SOURCE-RANGES|MARK-MASQ|IPVS-)|CNI-|FLANNEL-|cali-|CILIUM_|OLD_CILIUM_|WEAVE|ANTREA-|KUBE-ROUTER-'
for tool in iptables ip6tables iptables-legacy ip6tables-legacy; do
	has "$tool-save" || continue
	rules=$("$tool-save" -c 2>/dev/null) || continue
	count=$(printf '%s\n' "$rules" | grep -Ec -e "^:($chains)" || true)
	[ "$count" -gt 0 ] || continue
	case "$rules" in *"$newline:cali-"*) calico=1 ;; esac
	echo "$tool: $count chains"
	[ -z "$doing" ] || printf '%s\n' "$rules" | grep -Ev -e "^:($chains)" -e "^\[[0-9:]*\] -A ($chains)" -e "(-j|-g) ($chains)" | "$tool-restore" -c || left_is "rules of $tool: they could not be replaced"
done
has iptables-save || left_is "rules of iptables, if any: they cannot be inspected without iptables-save; install iptables, or reboot the node"

if has ipset; then
	each "$(ipset list -n 2>/dev/null | grep -E '^(KUBE-|cali[46]0|cilium_|weave-|ANTREA-|kube-router-)' || true)" act ipset destroy
fi

# Virtual servers of ipvs have no names: they belong to kube-proxy or kube-router if its device
# exists.
if has ipvsadm; then
	servers=$(ipvsadm -Sn 2>/dev/null | grep -c '^-A' || true)
else
	servers=$(grep -cE '^(TCP|UDP|SCTP|FWM) ' /proc/net/ip_vs 2>/dev/null || true)
fi
if [ "${servers:-0}" -gt 0 ]; then
	if [ -z "$ipvs" ] || ! has ipvsadm; then
		left_is "$servers virtual servers of ipvs: if no other program needs them, ipvsadm -C (package ipvsadm), or reboot the node"
	else
		act ipvsadm -C
	fi
fi

# Programs of cilium: as filters, in XDP, by pinned links, and at cgroups.
for path in /sys/class/net/*; do
	device=${path##*/}
	if has tc; then
		for hook in ingress egress; do
			filters=$(tc filter show dev "$device" "$hook" 2>/dev/null | sed -nE 's/^filter protocol ([^ ]+) pref ([0-9]+) bpf .*handle (0x[0-9a-f]+) (.* )?(cil_|cilium|bpf_(lxc|host|netdev|overlay|network)).*/protocol \1 pref \2 handle \3 bpf/p') || filters=
			each "$filters" act tc filter delete dev "$device" "$hook"
		done
	fi
done
for path in "$bpf"/cilium "$bpf"/tc/globals/cilium_*; do
	[ ! -e "$path" ] || act rm -r "$path"
done
if has ip; then
	for path in /sys/class/net/*; do
		device=${path##*/}
		if ip -d link show dev "$device" 2>/dev/null | grep -qE 'prog/xdp.* (cil|bpf)_xdp_'; then
			act ip link set dev "$device" xdp off
			act ip link set dev "$device" xdpgeneric off
		fi
	done
fi
if [ -n "$cilium" ] && ! has tc; then
	left_is "filters of cilium, if any: they cannot be inspected without tc; install iproute2, or reboot the node"
fi
if has bpftool; then
	for group in /sys/fs/cgroup /sys/fs/cgroup/unified; do
		attached=$(bpftool cgroup show "$group" 2>/dev/null | awk '$NF ~ /^(cil_)?sock[46]_/ { print $2, "id", $1 }') || attached=
		each "$attached" act bpftool cgroup detach "$group"
	done
elif [ -n "$cilium" ]; then
	left_is "programs of cilium at cgroups, if it attached some without pins: they would translate Services for the node's own sockets; install bpftool and run this again, or reboot the node"
fi

if has ip; then
	for family in -4 -6; do
		for rule in 'fwmark 0x200/0xf00 lookup 2004' 'fwmark 0xa00/0xf00 lookup 2005'; do
			if ip "$family" rule show 2>/dev/null | grep -q "$rule"; then
				moved=$(ip "$family" rule show | grep -E '^(0|100):.*from all lookup local' || true)
				# Cilium moves the rule for the node's own addresses behind its own.
				case "$moved" in
				0:* | '') ;;
				*)
					act ip "$family" rule add pref 0 lookup local
					if [ -z "$doing" ] || ip "$family" rule show | grep -q '^0:.*lookup local'; then
						act ip "$family" rule delete pref 100 lookup local
					fi
					;;
				esac
				each "$rule" act ip "$family" rule delete
				[ -z "$(ip "$family" route show table "${rule##* }" 2>/dev/null)" ] || act ip "$family" route flush table "${rule##* }"
			fi
		done
		[ -n "$calico" ] || continue
		for proto in 12 80; do # bird, felix
			each "$(ip "$family" route show type blackhole proto "$proto" 2>/dev/null | sed -nE "s/^(blackhole )?([^ ]+).*/\2 proto $proto/p")" act ip "$family" route delete blackhole
		done
		routes=$(ip "$family" route show type unicast proto 12 2>/dev/null | grep -v ' dev \(tunl0\|vxlan\)' || true)
		[ -z "$routes" ] || left_is "routes of BIRD, which may belong to calico: ip $family route show proto bird; reboot the node, or delete them"
	done
	if [ -n "$calico" ] && [ -n "$(ip -4 address show dev tunl0 up 2>/dev/null)" ]; then
		act ip address flush dev tunl0 # created by the kernel: it cannot be deleted
		act ip link set dev tunl0 down
	fi

	for device in kube-ipvs0 kube-dummy-if cni0 flannel.1 flannel-v6.1 flannel-wg flannel-wg-v6 vxlan.calico vxlan-v6.calico wireguard.cali wg-v6.cali weave cilium_host cilium_net cilium_vxlan cilium_geneve cilium_wg0 antrea-gw0 kube-bridge; do
		[ ! -e "/sys/class/net/$device" ] || act ip link delete "$device"
	done
	for path in /sys/class/net/cali* /sys/class/net/lxc*; do
		[ ! -e "$path" ] || [ -e "$path/bridge" ] || act ip link delete "${path##*/}"
	done
else
	left_is "devices, routes and rules: they cannot be inspected without ip; install iproute2, or reboot the node"
fi

for file in "$conf"/*.conflist "$conf"/*.conf "$conf"/*.json; do
	[ -e "$file" ] || continue
	types=$(grep -o '"type" *: *"[^"]*"' "$file" | tr -d ' ' | sort -u) || types=
	case "$types" in
	*'"loxilight-cni"'* | '"type":"loopback"') ;;
	*) act mv "$file" "$file.replaced" ;;
	esac
done
[ -z "$left" ] || printf '%s\n' "${left#"$newline"}"
[ -n "$doing" ] || echo "nothing was changed: $0 --do does all this"
