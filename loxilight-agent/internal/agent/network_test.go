// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
)

// TestResolversFollow: the pod network learns names from the cluster's DNS Service, its endpoints and
// the configured servers, and follows their changes.
func TestResolversFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.Resolvers.Addresses = []string{"169.254.20.10"}
	w.agent()
	w.inStep(api.KindPeer, "n2")
	resolvers := func(what, want string) {
		t.Helper()
		eventually(t, what, func() bool {
			spec := w.daemon.has()["PodNetwork/default"]
			return strings.Contains(spec, `"policy":"required"`) && strings.HasSuffix(spec, `,"resolvers":[`+want+`]}`)
		})
	}
	resolvers("the configured server", `"169.254.20.10"`)
	dns := service("kube-system", "kube-dns", "10.96.0.10")
	dns.Spec.ClusterIPs = []string{"10.96.0.10", "2001:db8:96::a"}
	dns.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	w.kube.Set(dns)
	resolvers("the Service", `"10.96.0.10","2001:db8:96::a","169.254.20.10"`)
	w.kube.Set(slice("kube-system", "kube-dns", "kube-dns-a", "10.244.2.5"))
	resolvers("an endpoint", `"10.96.0.10","2001:db8:96::a","169.254.20.10","10.244.2.5"`)
	w.kube.Set(slice("kube-system", "kube-dns", "kube-dns-b", "10.244.2.3"), slice("shop", "kube-dns", "kube-dns-c", "10.244.2.9"))
	resolvers("endpoints of two slices", `"10.96.0.10","2001:db8:96::a","169.254.20.10","10.244.2.3","10.244.2.5"`)
	w.kube.Delete(slice("kube-system", "kube-dns", "kube-dns-a"))
	resolvers("without an endpoint", `"10.96.0.10","2001:db8:96::a","169.254.20.10","10.244.2.3"`)
	w.kube.Delete(dns)
	resolvers("without the Service", `"169.254.20.10"`)
}
