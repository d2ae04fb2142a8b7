// SPDX-License-Identifier: Apache-2.0

// Package kube is the connection to the API server: it mirrors objects of a few kinds, reduced to
// the fields that the agent needs, and writes the few objects that the agent maintains. It knows
// nothing of the daemon.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options contain the address and the credentials for the API server.
type Options struct {
	Kubeconfig string // file; empty: as in KUBECONFIG, or the configuration of a pod
	APIServer  string // URL instead of the kubeconfig's; empty: the kubeconfig's
	UserAgent  string
}

// Client is a client for one API server.
type Client struct {
	Host string // URL

	core, discovery, coordination, networking, policy pair

	dialers [2]*dialer
}

// pair are clients for one API group, with a connection each: if there are several API servers, the
// connections lead to different ones.
type pair [2]*rest.RESTClient

const protobuf = "application/vnd.kubernetes.protobuf"

// New makes a client without connecting.
func New(o Options) (*Client, error) {
	cfg, err := load(o)
	if err != nil {
		return nil, err
	}
	// A dead connection that was not closed (the server's machine is gone) is detected within 15
	// s, unless configured otherwise.
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) == "" {
			if err := os.Setenv(name, value); err != nil {
				return nil, err
			}
		}
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme, networkingv1.AddToScheme, addClusterPolicies} {
		utilruntime.Must(add(scheme))
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = protobuf, protobuf+",application/json"
	cfg.UserAgent = o.UserAgent
	cfg.QPS, cfg.Burst = 20, 50
	c := &Client{Host: cfg.Host}
	for i := range c.dialers {
		c.dialers[i] = newDialer(o.APIServer != "" || file(o) != "")
		cfg.Dial = c.dialers[i].dial
		shared, err := rest.HTTPClientFor(cfg)
		if err != nil {
			return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
		}
		for _, part := range []struct {
			clients *pair
			gv      schema.GroupVersion
		}{{&c.core, corev1.SchemeGroupVersion}, {&c.discovery, discoveryv1.SchemeGroupVersion}, {&c.coordination, coordinationv1.SchemeGroupVersion}, {&c.networking, networkingv1.SchemeGroupVersion}, {&c.policy, clusterPolicyVersion}} {
			if part.clients[i], err = clientFor(*cfg, part.gv, shared); err != nil {
				return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
			}
		}
	}
	c.dialers[0].avoid, c.dialers[1].avoid = c.dialers[1], c.dialers[0]
	return c, nil
}

func clientFor(cfg rest.Config, gv schema.GroupVersion, shared *http.Client) (*rest.RESTClient, error) {
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(&cfg, shared)
}

// file returns the path of the kubeconfig, or an empty string if there is none.
func file(o Options) string { return cmp.Or(o.Kubeconfig, os.Getenv("KUBECONFIG")) }

func load(o Options) (*rest.Config, error) {
	if path := file(o); path != "" {
		cfg, err := clientcmd.BuildConfigFromFlags(o.APIServer, path)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		return cfg, nil
	}
	cfg, err := inCluster(o.APIServer)
	if err != nil {
		return nil, fmt.Errorf("no kubeconfig, and the in-cluster configuration is unusable: %w", err)
	}
	return cfg, nil
}

// inCluster is like rest.InClusterConfig, but if server is set, it does not need the service's
// address.
func inCluster(server string) (*rest.Config, error) {
	if u, err := url.Parse(server); server != "" && (err != nil || u.Scheme != "https") {
		return nil, fmt.Errorf("apiServer %q is refused: the token of the pod is sent to https:// only; "+
			"set apiServer to https://ADDRESS:PORT, or give a kubeconfig", server)
	}
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if server == "" && (host == "" || port == "") {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and _PORT are not set: set apiServer in the configuration")
	}
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            cmp.Or(server, "https://"+net.JoinHostPort(host, port)),
		TLSClientConfig: rest.TLSClientConfig{CAFile: dir + "ca.crt"},
		BearerToken:     string(token),
		BearerTokenFile: dir + "token",
	}, nil
}

// PatchNodeCondition sets one condition of a node.
func (c *Client) PatchNodeCondition(ctx context.Context, node string, condition corev1.NodeCondition) error {
	patch, err := conditionPatch(condition)
	if err != nil {
		return err
	}
	return c.core[0].Patch("application/strategic-merge-patch+json").Resource("nodes").Name(node).SubResource("status").Body(patch).Do(ctx).Error()
}

// CreateEvent writes an event, which users see in kubectl describe.
func (c *Client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.core[0].Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}
