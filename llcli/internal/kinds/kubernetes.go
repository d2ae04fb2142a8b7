// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// Labels of the objects that implement Kubernetes services.
const (
	LabelNamespace = "namespace"
	LabelService   = "service"
	LabelPolicy    = "policy"
	LabelPort      = "port"
)

// servicesOf returns the names of the Services that a name stands for: for NAMESPACE/NAME, the
// Services for all ports and types of that Kubernetes service; otherwise, the name itself.
func servicesOf(ctx context.Context, a *command.App, d command.Daemon, name string) ([]string, error) {
	namespace, service, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || service == "" || strings.ContainsAny(service, "/:") {
		return []string{name}, nil
	}
	objects, err := a.Collect(ctx, d, K8sServiceList(namespace, service))
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range objects {
		names = append(names, objects[i].Name)
	}
	if len(names) == 0 {
		return []string{name}, nil
	}
	slices.Sort(names)
	return names, nil
}

// K8sServiceList returns the request that lists the objects of services with this namespace and
// name; an empty one matches all.
func K8sServiceList(namespace, name string) api.ListParams {
	return k8sList(api.KindService, namespace, LabelService, name)
}

// K8sPolicyList returns the request that lists the objects of network policies with this namespace and
// name; an empty one matches all.
func K8sPolicyList(namespace, name string) api.ListParams {
	return k8sList(api.KindPolicy, namespace, LabelPolicy, name)
}

// k8sList returns the request that lists objects of the agent whose labels are a namespace and, as
// label, a name; an empty one matches all.
func k8sList(kind, namespace, label, name string) api.ListParams {
	p := api.ListParams{Kind: kind, Owner: api.OwnerK8s, Labels: map[string]string{}}
	if namespace != "" {
		p.Labels[LabelNamespace] = namespace
	}
	if name != "" {
		p.Labels[label] = name
	}
	return p
}

// endpointsOf returns the names of the Endpoints that a name stands for: the Endpoint of that
// name, or else all interfaces of the pod NAMESPACE/NAME.
func endpointsOf(ctx context.Context, a *command.App, d command.Daemon, name string) ([]string, error) {
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(pod, "/") {
		return []string{name}, nil
	}
	if _, err := a.Object(ctx, d, api.KindEndpoint, name); !command.IsNotFound(err) {
		return []string{name}, err
	}
	var names []string
	_, err := a.List(ctx, d, api.ListParams{Kind: api.KindEndpoint}, func(objects []api.Object) error {
		for i := range objects {
			var spec api.EndpointSpec
			Decode(&objects[i], &spec, &struct{}{})
			if spec.Namespace == namespace && spec.Pod == pod {
				names = append(names, objects[i].Name)
			}
		}
		return nil
	})
	if len(names) == 0 {
		names = []string{name} // the daemon reports that it does not exist
	}
	return names, err
}

// AllInterfaces replaces the names of pods with the names of their Endpoints.
func AllInterfaces(ctx context.Context, a *command.App, d command.Daemon, kind string, names []string) ([]string, error) {
	if kind != api.KindEndpoint {
		return names, nil
	}
	var all []string
	for _, name := range names {
		found, err := endpointsOf(ctx, a, d, name)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
