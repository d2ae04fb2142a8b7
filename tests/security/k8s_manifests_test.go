// SPDX-License-Identifier: Apache-2.0

package security

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// manifest contains the fields of the shipped manifests that these tests check.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	Rules []struct {
		APIGroups     []string `yaml:"apiGroups"`
		Resources     []string `yaml:"resources"`
		ResourceNames []string `yaml:"resourceNames"`
		Verbs         []string `yaml:"verbs"`
	} `yaml:"rules"`
	RoleRef struct {
		Kind, Name string
	} `yaml:"roleRef"`
	Subjects []struct {
		Kind, Name string
	} `yaml:"subjects"`
	Spec podOrPolicy `yaml:"spec"`
}

type podOrPolicy struct {
	Pod      podSpec `yaml:",inline"`
	Template struct {
		Spec podSpec `yaml:"spec"`
	} `yaml:"template"`
	FailurePolicy     string   `yaml:"failurePolicy"`
	PolicyName        string   `yaml:"policyName"`
	ValidationActions []string `yaml:"validationActions"`
	MatchConstraints  struct {
		ResourceRules []struct {
			Resources  []string `yaml:"resources"`
			Operations []string `yaml:"operations"`
		} `yaml:"resourceRules"`
	} `yaml:"matchConstraints"`
	MatchConditions []struct {
		Expression string `yaml:"expression"`
	} `yaml:"matchConditions"`
	Variables []struct {
		Name, Expression string
	} `yaml:"variables"`
	Validations []struct {
		Expression string `yaml:"expression"`
	} `yaml:"validations"`
}

type podSpec struct {
	ServiceAccountName string      `yaml:"serviceAccountName"`
	SecurityContext    security    `yaml:"securityContext"`
	InitContainers     []container `yaml:"initContainers"`
	Containers         []container `yaml:"containers"`
}

type container struct {
	Name            string   `yaml:"name"`
	SecurityContext security `yaml:"securityContext"`
}

type security struct {
	RunAsNonRoot             *bool `yaml:"runAsNonRoot"`
	RunAsUser                *int  `yaml:"runAsUser"`
	Privileged               bool  `yaml:"privileged"`
	ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
	AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
	Capabilities             struct {
		Drop, Add []string
	} `yaml:"capabilities"`
}

const manifestDir = "../../configs/kubernetes/"

// readManifests returns the objects of a shipped manifest.
func readManifests(t *testing.T, file string) (all []manifest) {
	t.Helper()
	f, err := os.Open(manifestDir + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, m)
	}
}

// rightsOf returns everything that an account may do, as verb group/resource[name].
func rightsOf(all []manifest, account string) (rights []string) {
	for _, binding := range all {
		if binding.Kind != "ClusterRoleBinding" && binding.Kind != "RoleBinding" || len(binding.Subjects) != 1 || binding.Subjects[0].Name != account {
			continue
		}
		for _, role := range all {
			if role.Kind != binding.RoleRef.Kind || role.Metadata.Name != binding.RoleRef.Name {
				continue
			}
			for _, r := range role.Rules {
				for _, group := range r.APIGroups {
					for _, resource := range r.Resources {
						for _, verb := range r.Verbs {
							rights = append(rights, strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", verb, group, resource, strings.Join(r.ResourceNames, ","))))
						}
					}
				}
			}
		}
	}
	slices.Sort(rights)
	return rights
}

// TestS11Accounts: the account on each node, and the Deployment's account, have exactly the
// required rights. The rights are evaluated here, and tried with pod tokens in tests/k8s.
func TestS11Accounts(t *testing.T) {
	for _, file := range []string{"loxilight.yaml", "loxilight-agent.yaml"} {
		all := readManifests(t, file)
		accounts := map[string]string{} // by kind of workload
		for _, m := range all {
			if len(m.Spec.Template.Spec.Containers) > 0 {
				accounts[m.Kind] = m.Spec.Template.Spec.ServiceAccountName
			}
		}
		for kind, want := range map[string][]string{
			"DaemonSet": {
				"create /events", "list /nodes", "list /services", "list discovery.k8s.io/endpointslices", "patch /nodes/status",
				"watch /nodes", "watch /services", "watch discovery.k8s.io/endpointslices",
				"list /namespaces", "list /pods", "list networking.k8s.io/networkpolicies", "watch /namespaces", "watch /pods", "watch networking.k8s.io/networkpolicies",
				"list policy.networking.k8s.io/clusternetworkpolicies", "watch policy.networking.k8s.io/clusternetworkpolicies",
			},
			"Deployment": {
				"create /events", "create coordination.k8s.io/leases", "get coordination.k8s.io/leases loxilight-addresses",
				"list /services", "patch /services/status", "update coordination.k8s.io/leases loxilight-addresses", "watch /services",
				"list policy.networking.k8s.io/clusternetworkpolicies", "watch policy.networking.k8s.io/clusternetworkpolicies",
				"patch policy.networking.k8s.io/clusternetworkpolicies/status",
			},
		} {
			slices.Sort(want)
			if got := rightsOf(all, accounts[kind]); !slices.Equal(got, want) {
				t.Errorf("%s: the %s's account %q may\n%s\nwant\n%s", file, kind, accounts[kind], strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		if accounts["DaemonSet"] == accounts["Deployment"] {
			t.Errorf("%s: nodes have the account %q of the Deployment", file, accounts["Deployment"])
		}
		checkPolicy(t, file, all, "system:serviceaccount:kube-system:"+accounts["DaemonSet"])
	}
}

// checkPolicy: an account's patches of nodes/status are restricted to the node of its token, and
// are rejected if the policy cannot be evaluated. Its expressions are tested in tests/k8s, with a
// real API server.
func checkPolicy(t *testing.T, file string, all []manifest, user string) {
	t.Helper()
	for _, p := range all {
		if p.Kind != "ValidatingAdmissionPolicy" || !strings.HasSuffix(p.Metadata.Name, "-own-node") {
			continue
		}
		rule := p.Spec.MatchConstraints.ResourceRules[0]
		for _, resource := range []string{"nodes", "nodes/status"} {
			if !slices.Contains(rule.Resources, resource) || !slices.Contains(rule.Operations, "UPDATE") {
				t.Errorf("%s: %s is for %v of %v", file, p.Metadata.Name, rule.Operations, rule.Resources)
			}
		}
		if len(p.Spec.MatchConditions) != 1 || p.Spec.MatchConditions[0].Expression != "request.userInfo.username == '"+user+"'" {
			t.Errorf("%s: %s is for %v, want %s", file, p.Metadata.Name, p.Spec.MatchConditions, user)
		}
		text := fmt.Sprint(p.Spec.Variables, p.Spec.Validations)
		for _, want := range []string{
			"authentication.kubernetes.io/node-name", "variables.tokenNode == request.name", "object.status.?addresses", "metadata.?annotations", "NetworkUnavailable",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s does not look at %s", file, p.Metadata.Name, want)
			}
		}
		bound := slices.ContainsFunc(all, func(b manifest) bool {
			return b.Kind == "ValidatingAdmissionPolicyBinding" && b.Spec.PolicyName == p.Metadata.Name && slices.Equal(b.Spec.ValidationActions, []string{"Deny"})
		})
		if !bound || p.Spec.FailurePolicy != "Fail" {
			t.Errorf("%s: %s is bound: %t; failurePolicy %s", file, p.Metadata.Name, bound, p.Spec.FailurePolicy)
		}
		return
	}
	t.Errorf("%s: no policy binds the account of the nodes to its own node", file)
}

// TestS10Containers: containers are root only if they prepare the node or run the daemon itself,
// and the ids of groups are the same in all files.
func TestS10Containers(t *testing.T) {
	root := map[string][]string{"install-plugin": nil, "prepare-cni": {"CHOWN"}, "uninstall": nil} // with the capabilities that they keep
	for _, file := range []string{"loxilight.yaml", "loxilight-agent.yaml", "loxilight-leave.yaml"} {
		for _, m := range readManifests(t, file) {
			for _, pod := range []podSpec{m.Spec.Pod, m.Spec.Template.Spec} {
				for _, c := range append(pod.InitContainers, pod.Containers...) {
					s := c.SecurityContext
					if c.Name == "daemon" || c.Name == "detach" {
						continue // privileged: it is the data plane
					}
					if s.Privileged || !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
						t.Errorf("%s: %s of %s: %+v", file, c.Name, m.Kind, s)
					}
					caps, mayBeRoot := root[c.Name]
					if !slices.Equal(s.Capabilities.Add, caps) {
						t.Errorf("%s: %s keeps %v", file, c.Name, s.Capabilities.Add)
					}
					user, nonRoot := s.RunAsUser, s.RunAsNonRoot
					if user == nil {
						user, nonRoot = pod.SecurityContext.RunAsUser, pod.SecurityContext.RunAsNonRoot
					}
					if !mayBeRoot && (user == nil || *user == 0 || nonRoot == nil || !*nonRoot) {
						t.Errorf("%s: %s of %s is root", file, c.Name, m.Kind)
					}
				}
			}
		}
	}
	numbers := map[string]string{"loxilight": "64250", "loxilight-admin": "64251"}
	for file, pattern := range map[string]string{
		"../../systemd/sysusers.conf": `(?m)^g %s +%s `, "../../tools/image/make/main.go": `"%s:x:%s:`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for group, number := range numbers {
			if !regexp.MustCompile(fmt.Sprintf(pattern, group, number)).Match(text) {
				t.Errorf("%s: group %s is not %s", file, group, number)
			}
		}
	}
}
