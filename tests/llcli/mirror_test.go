// SPDX-License-Identifier: Apache-2.0

package llcli

import "testing"

// TestMirrors: a Mirror is added, refused, changed, shown and deleted by flags, in files and by a
// rollback, against the daemon.
func TestMirrors(t *testing.T) {
	s := newSite(t)
	s.expect("interface add in0 --wait 60s", "Interface/in0 created")
	s.expect("service add web --frontend 198.51.100.10:80/tcp --backend 10.0.1.2:8080", "Service/web created")
	s.expect("mirror add watch --interface in0 --direction rx --protocol udp --port domain --to-device mon0", "Mirror/watch created")
	s.expect("get mirror watch -o yaml", "mon0")
	s.refuse(1, "mirror add bad --interface in0 --to-device in0", "--to-device", "in0 is the device of Interface/in0, whose packets are copied")
	s.refuse(2, "mirror add bad --interface in0 --to-device lo", "--to-device", "lo returns copies to the node itself")
	s.refuse(2, "mirror add bad --interface in0 --to-device mon0 --snaplen 12", "--snaplen", "12 is not between 64 and 65535")
	s.refuse(2, "mirror add bad --interface in0 --to-device mon0 --vni 7", "--vni", "applies to peer only")
	s.refuse(2, "mirror add bad --interface in0 --to-device mon0 --source group:web", "--source", "a Mirror matches no AddressGroups")
	s.refuse(2, "mirror add bad --to-device mon0", "the source is missing")
	s.expect("mirror set watch --service web --add-port 5353 --snaplen 128", "Mirror/watch updated")
	s.expect("mirror set watch --service web --add-port 5353 --snaplen 128", "Mirror/watch unchanged")
	s.expect("get mirrors -o wide", "service web", "udp port 53,5353", "128")
	s.expect("tunnel add mesh --vni 7", "Tunnel/mesh created")
	s.expect("peer add far --underlay 192.0.2.17 --tunnel mesh", "Peer/far created")
	s.refuse(1, "mirror set watch --to-peer far --vni 7", "--vni", "7 is the VNI of Tunnel/mesh")
	s.expect("mirror set watch --to-peer far --vni 8", "Mirror/watch updated")
	s.refuse(1, "tunnel add other --vni 8", "Mirror/watch would stop copying", "8 is the VNI of Tunnel/other")
	s.expect("describe mirror watch", "peer far vni 8")
	s.expect("__complete mirror set watch --to-peer f", "far")
	s.expect("export mirrors", "kind: Mirror", "service: web", "vni: 8")
	s.refuse(0, "delete service web")
	s.says("get mirror watch", "Pending", "Service/web does not exist: create it (llcli service add web)")
	s.expect("rollback --last", "Service/web created")
	s.expect("mirror delete watch", "Mirror/watch deleted")
	s.expect("rollback --last", "Mirror/watch created")
	s.expect("events status --of mirror/watch --since 10m --follow=false", "Mirror/watch")
}
