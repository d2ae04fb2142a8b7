// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/loxilight/loxilight/internal/testnet"
)

// dirty is a node with leftovers of other plugins, for clean-node.sh.
type dirty struct {
	t    *testing.T
	ns   *testnet.NS
	bpf  string // its BPF file system
	conf string // its runtime configurations
	bin  string // fakes of programs that not every machine has; only, if not empty, is PATH
	only string
}

func newDirty(t *testing.T) *dirty {
	for _, program := range []string{"nft", "iptables", "ip", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (.ci/setup test installs it)", err)
		}
	}
	return &dirty{t: t, ns: testnet.New(t, "node"), bpf: testnet.BPFFS(t), conf: t.TempDir(), bin: t.TempDir()}
}

func (d *dirty) do(lines ...string) {
	d.t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		d.ns.Run(d.t, words[0], words[1:]...)
	}
}

func (d *dirty) write(dir string, mode os.FileMode, files map[string]string) {
	d.t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			d.t.Fatal(err)
		}
	}
}

// clean runs the script.
func (d *dirty) clean(args ...string) string {
	d.t.Helper()
	path := d.bin + ":" + os.Getenv("PATH")
	if d.only != "" {
		path = d.only
	}
	const there = `mount -t sysfs sysfs /sys && mount --bind $2 /sys/fs/bpf && CNI_CONF_DIR=$1 PATH=$3 exec /bin/sh ../../configs/kubernetes/clean-node.sh $4`
	return d.ns.Run(d.t, "unshare", append([]string{"--mount", "sh", "-c", there, "sh", d.conf, d.bpf, path}, args...)...)
}

func (d *dirty) state() string {
	return d.ns.Run(d.t, "sh", "-c", `nft list tables | grep -v -e nat -e filter; iptables-save -c | sed -e /^#/d -e "/-A OUTPUT/s/^[^ ]* //" -e "s/ACCEPT .*//"; ip -br link; ip -br address
		ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; for h in ingress egress; do tc filter show dev br0 $h; done; ip -d link show br0 | grep prog/xdp; find $2 | sort; ls $1; cat $3/*.state 2>/dev/null`, "sh", d.conf, d.bpf, d.bin)
}

// check runs the script: without --do it reports and changes nothing, with --do it cleans, and a
// third run finds nothing.
func (d *dirty) check(says, gone, stays []string) {
	d.t.Helper()
	before := d.state()
	said := d.clean()
	for _, want := range says {
		if !strings.Contains(said, want+"\n") {
			d.t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if now := d.state(); now != before {
		d.t.Errorf("it changed something:\n%s\nbefore:\n%s", now, before)
	}
	did := d.clean("--do")
	if strings.Contains(did, "this failed") {
		d.t.Errorf("it could not do it:\n%s", did)
	}
	after := d.state()
	for _, word := range gone {
		if !strings.Contains(before, word) {
			d.t.Errorf("%q was not there:\n%s", word, before)
		}
		if strings.Contains(after, word) {
			d.t.Errorf("%q is still there:\n%s", word, after)
		}
	}
	for _, word := range stays {
		if !strings.Contains(after, word) {
			d.t.Errorf("%q is gone:\n%s", word, after)
		}
	}
	if said := d.clean("--do"); said != "" {
		d.t.Errorf("it finds more: %s", said)
	}
}

// TestCleanNode cleans a namespace with leftovers of kube-proxy and other plugins, and with other
// programs' state.
func TestCleanNode(t *testing.T) {
	d := newDirty(t)
	d.write(d.conf, 0o644, map[string]string{
		"05-other.conflist": `{"plugins":[{"type":"bridge"}]}`, "10-loxilight.conflist": `{"plugins":[{"type": "loxilight-cni"}]}`, "readme": "x",
		"99-loopback.conf": `{"cniVersion": "0.3.1", "type": "loopback"}`,
	})
	d.write(d.bin, 0o755, map[string]string{
		"ipvsadm": `#!/bin/sh
case $1 in -Sn) cat "$0.state" ;; -C) : >"$0.state" ;; esac
`,
		"ipset": `#!/bin/sh
case $1 in list) cat "$0.state" ;; destroy) sed -i "/^$2\$/d" "$0.state" ;; esac
`,
		"ipvsadm.state": "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1\n", "ipset.state": "KUBE-CLUSTER-IP\nmine\ncali40masq-ipam-pools\n",
	})
	d.do(
		"nft add table ip kube-proxy", "nft add table ip6 kube-proxy", "nft add table ip mine", "nft add table ip flannel-ipv4", "nft add table ip6 flannel-ipv6", "nft add table ip calico", "nft add table inet calico-mine",
		"iptables -t nat -N KUBE-SERVICES", "iptables -t nat -N KUBE-SVC-ABC", "iptables -t nat -A PREROUTING -j KUBE-SERVICES", "iptables -t nat -A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-ABC",
		"iptables -t nat -A PREROUTING -p tcp --dport 8080 -j DNAT --to 192.0.2.1", "iptables -N KUBE-FIREWALL", "iptables -A INPUT -c 17 1700 -j KUBE-FIREWALL",
		"iptables -N KUBE-IPVS-FILTER", "iptables -N KUBE-IPVS-OUT-FILTER", "iptables -A INPUT -j KUBE-IPVS-FILTER", "iptables -A OUTPUT -j KUBE-IPVS-OUT-FILTER",
		"ip link add cni0 type bridge", "ip link add br0 type bridge", "ip link add lxcbr0 type bridge", "ip link set br0 addrgenmode none", "ip link set br0 up", "ip link add kube-ipvs0 type bridge", "ip link add cali123 type veth peer name pod0",
		"ip link add tunl0 type bridge", "ip link set tunl0 addrgenmode none", "ip link set tunl0 up", "ip link set lo up", "ip address add 10.244.7.0/32 dev tunl0", "ip address add 198.51.100.1/24 dev br0",
		"ip route add blackhole 10.244.7.0/26 proto 12", "ip route add blackhole 203.0.113.0/24 proto static", "ip -6 route add blackhole 2001:db8:7::/122 proto 80", "ip route add 10.244.8.0/26 via 198.51.100.2 proto 12",
	)
	if said := d.clean(); !strings.Contains(said, "left: routes of BIRD") {
		t.Errorf("it does not tell of a route that it leaves:\n%s", said)
	}
	d.check(
		[]string{
			"nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy", "nft delete table ip flannel-ipv4", "nft delete table ip6 flannel-ipv6", "nft delete table ip calico", "iptables: 4 chains", "ip link delete cni0",
			"ipvsadm -C", "ipset destroy KUBE-CLUSTER-IP", "ipset destroy cali40masq-ipam-pools", "ip -4 route delete blackhole 10.244.7.0/26 proto 12", "ip -6 route delete blackhole 2001:db8:7::/122 proto 80",
			"ip address flush dev tunl0", "ip link set dev tunl0 down", "ip link delete kube-ipvs0", "ip link delete cali123", "mv " + d.conf + "/05-other.conflist " + d.conf + "/05-other.conflist.replaced",
		},
		[]string{"kube-proxy", "flannel", "table ip calico\n", "KUBE-SERVICES", "KUBE-SVC", "KUBE-IPVS", "cni0", "kube-ipvs0", "cali123", "05-other.conflist\n", "10.244.7.0", "2001:db8:7::", "-A -t 10.96", "KUBE-CLUSTER-IP", "cali40masq"},
		[]string{
			"table ip mine", "table inet calico-mine", "[17:1700] -A INPUT -j KUBE-FIREWALL", ":KUBE-FIREWALL", "--to-destination 192.0.2.1", "br0", "lxcbr0", "10-loxilight.conflist", "readme", "05-other.conflist.replaced", "99-loopback.conf\n",
			"blackhole 203.0.113.0/24", "10.244.8.0/26", "\nmine\n",
		},
	)
}

// TestCleanNodeOfCilium removes cilium's programs on devices, attached by links and as filters, and
// its rules.
func TestCleanNodeOfCilium(t *testing.T) {
	d := newDirty(t)
	d.do("ip link add br0 type bridge", "ip link set br0 addrgenmode none", "ip link set br0 up", "ip link set lo up")
	d.write(d.bin, 0o755, map[string]string{
		"bpftool": `#!/bin/sh
case "$1 $2 $3" in
'cgroup show /sys/fs/cgroup') cat "$0.state" ;;
'cgroup detach /sys/fs/cgroup') sed -i "/^$6 /d" "$0.state" ;;
esac
`,
		"bpftool.state": "ID       AttachType      AttachFlags     Name\n12       cgroup_inet4_connect multi           cil_sock4_connect\n13       cgroup_device   multi           sd_devices\n",
	})
	links := d.pinnedProgram("br0")
	d.do(
		"ip link set dev br0 xdpgeneric pinned "+d.bpf+"/tc/globals/cilium_xdp", "tc qdisc add dev br0 clsact", "tc filter add dev br0 ingress pref 1 handle 1 bpf da object-pinned "+d.bpf+"/tc/globals/cilium_program",
		"tc filter add dev br0 ingress pref 7 protocol ip bpf da object-pinned "+d.bpf+"/mine",
		"ip rule add pref 9 fwmark 0x200/0xf00 lookup 2004", "ip rule add pref 10 fwmark 0xa00/0xf00 lookup 2005", "ip rule add pref 100 lookup local", "ip rule delete pref 0",
		"ip -6 rule add pref 9 fwmark 0x200/0xf00 lookup 2004", "ip route add local default dev lo table 2004", "ip rule add pref 11 fwmark 0x1 lookup 2006",
	)
	d.check(
		[]string{
			"tc filter delete dev br0 ingress protocol all pref 1 handle 0x1 bpf", "rm -r /sys/fs/bpf/cilium", "rm -r /sys/fs/bpf/tc/globals/cilium_program", "ip link set dev br0 xdpgeneric off", "bpftool cgroup detach /sys/fs/cgroup cgroup_inet4_connect id 12",
			"ip -4 rule delete fwmark 0x200/0xf00 lookup 2004", "ip -6 rule delete fwmark 0x200/0xf00 lookup 2004", "ip -4 rule delete fwmark 0xa00/0xf00 lookup 2005", "ip -4 route flush table 2004", "ip -4 rule add pref 0 lookup local",
		},
		[]string{"cilium", "cil_xdp_entry", "pref 1 ", "table 2004", "lookup 2004", "lookup 2005", "100:", "cil_sock4_connect"},
		[]string{"pref 7 ", d.bpf + "/mine", "lookup 2006", "0:\tfrom all lookup local", "sd_devices"},
	)
	if n := links(); n != 0 {
		t.Errorf("%d programs are attached by links", n)
	}
}

// pinnedProgram attaches a cilium program to a device through a link, pins both as cilium does, and
// pins a program of a different owner. It returns a function that counts the programs on the
// device.
func (d *dirty) pinnedProgram(device string) func() int {
	d.t.Helper()
	for _, dir := range []string{"cilium/devices/" + device + "/links", "tc/globals"} {
		if err := os.MkdirAll(filepath.Join(d.bpf, dir), 0o700); err != nil {
			d.t.Fatal(err)
		}
	}
	var index int
	d.ns.Do(d.t, func() error {
		for name, path := range map[string]string{"cil_from_netdev": "tc/globals/cilium_program", "cil_xdp_entry": "tc/globals/cilium_xdp", "mine": "mine"} {
			kind := ebpf.SchedCLS
			if name == "cil_xdp_entry" {
				kind = ebpf.XDP
			}
			program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
			if err != nil {
				return err
			}
			defer program.Close()
			if err := program.Pin(filepath.Join(d.bpf, path)); err != nil {
				return err
			}
			if name != "cil_from_netdev" {
				continue
			}
			dev, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			index = dev.Index
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				d.t.Logf("no links here: %v", err)
				continue
			}
			defer l.Close()
			if err := l.Pin(filepath.Join(d.bpf, "cilium/devices", device, "links", name)); err != nil {
				return err
			}
		}
		return nil
	})
	return func() (n int) {
		d.ns.Do(d.t, func() error {
			if r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress}); err == nil {
				n = len(r.Programs)
			}
			return nil
		})
		return n
	}
}

// TestCleanNodeWithoutTools: the script continues without missing programs, and lists what it
// could not see.
func TestCleanNodeWithoutTools(t *testing.T) {
	d := newDirty(t)
	d.do("ip link add cni0 type bridge")
	d.write(d.conf, 0o644, map[string]string{"05-other.conflist": `{"plugins":[{"type":"bridge"}]}`})
	if err := os.MkdirAll(filepath.Join(d.bpf, "cilium"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.only = t.TempDir()
	for _, program := range []string{"sh", "grep", "sed", "awk", "sort", "tr", "mv", "rm"} {
		path, err := exec.LookPath(program)
		if err == nil {
			err = os.Symlink(path, filepath.Join(d.only, program))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	did := d.clean("--do")
	for _, want := range []string{"nftables", "iptables", "filters of cilium", "at cgroups", "devices, routes and rules"} {
		if !strings.Contains(did, want) || !strings.Contains(did, "left: ") {
			t.Errorf("it does not say %q:\n%s", want, did)
		}
	}
	for path, want := range map[string]bool{filepath.Join(d.bpf, "cilium"): false, filepath.Join(d.conf, "05-other.conflist"): false, filepath.Join(d.conf, "05-other.conflist.replaced"): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %s", path, fmt.Sprint(err))
		}
	}
}
