// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// callIP are the sysctls of br_netfilter that make bridged frames pass through the IP rules.
var callIP = []string{"/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"}

// The corresponding attributes of a single bridge: IFLA_BR_NF_CALL_IPTABLES and its IPv6 twin.
const (
	bridgeCallIPv4 = 36
	bridgeCallIPv6 = 37
)

// bridgesCallIP reports whether bridged frames pass through the IP rules.
func bridgesCallIP(read reading) (bool, error) {
	loaded := false
	for _, file := range callIP {
		value, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // br_netfilter is not loaded
		}
		if err != nil {
			return false, err
		}
		if strings.TrimSpace(string(value)) != "0" {
			return true, nil
		}
		loaded = true
	}
	if !loaded {
		return false, nil
	}
	return aBridgeCallsIP()
}

// aBridgeCallsIP reports whether the frames of at least one bridge pass through the IP rules.
func aBridgeCallsIP() (bool, error) {
	links, err := list(unix.NETLINK_ROUTE, unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return false, err
	}
	for _, m := range links {
		if len(m) < unix.SizeofIfInfomsg {
			return false, fmt.Errorf("a device of %d bytes", len(m))
		}
		link, err := attributes(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return false, err
		}
		info, err := attributes(link[unix.IFLA_LINKINFO])
		if err != nil {
			return false, err
		}
		if text(info[unix.IFLA_INFO_KIND]) != "bridge" {
			continue
		}
		bridge, err := attributes(info[unix.IFLA_INFO_DATA])
		if err != nil {
			return false, err
		}
		for _, attr := range []uint16{bridgeCallIPv4, bridgeCallIPv6} {
			if v := bridge[attr]; len(v) > 0 && v[0] != 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// ebtables finds legacy tables of ebtables (before nftables). Their modules are loaded once a
// program has used them in any namespace; reading the tables would create them here.
func ebtables(read reading) (found []finding, err error) {
	modules, err := loaded(read, "ebtable_")
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		found = append(found, finding{bridged: true, why: "ebtables: the kernel's module " + name + " is loaded"})
	}
	return found, err
}

// loaded returns the loaded kernel modules whose names begin with prefix.
func loaded(read reading, prefix string) (map[string]bool, error) {
	modules, err := read("/proc/modules")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without modules
	}
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for line := range bytes.Lines(modules) {
		if name, _, _ := bytes.Cut(line, []byte(" ")); bytes.HasPrefix(name, []byte(prefix)) {
			names[string(name)] = true
		}
	}
	return names, nil
}
