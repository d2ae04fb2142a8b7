// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// documented contains the types that have an example in docs/api.md, keyed by the word after the
// code fence; the page must name all fields of these types.
var documented = map[string]any{
	"Request": Request{}, "Reply": Reply{}, "Object": Object{},
	"InterfaceSpec": InterfaceSpec{}, "InterfaceStatus": InterfaceStatus{},
	"EndpointSpec": EndpointSpec{}, "EndpointStatus": EndpointStatus{},
	"BridgeSpec": BridgeSpec{}, "RouteSpec": RouteSpec{}, "AddressGroupSpec": AddressGroupSpec{}, "NATSpec": NATSpec{},
	"FirewallRuleSpec": FirewallRuleSpec{}, "PodNetworkSpec": PodNetworkSpec{}, "PodNetworkStatus": PodNetworkStatus{},
	"CNIParams": CNIParams{}, "CapacityParams": CapacityParams{}, "CapacityResult": CapacityResult{},
	"PoliciesCheckParams": PoliciesCheckParams{}, "PoliciesCheckResult": PoliciesCheckResult{}, "PoliciesForParams": PoliciesForParams{}, "PoliciesForResult": PoliciesForResult{}, "PoliciesCompareParams": PoliciesCompareParams{}, "PoliciesCompareResult": PoliciesCompareResult{}, "PoliciesUnusedParams": PoliciesUnusedParams{}, "PoliciesUnusedResult": PoliciesUnusedResult{}, "AddressesListParams": AddressesListParams{}, "AddressesListResult": AddressesListResult{},
	"ServiceSpec": ServiceSpec{}, "ServiceStatus": ServiceStatus{},
	"TunnelSpec": TunnelSpec{}, "TunnelStatus": TunnelStatus{}, "PeerSpec": PeerSpec{}, "PeerStatus": PeerStatus{},
	"MirrorSpec": MirrorSpec{}, "MirrorStatus": MirrorStatus{},
	"EntitySpec": EntitySpec{}, "EntityStatus": EntityStatus{}, "NamespaceSpec": NamespaceSpec{}, "TierSpec": TierSpec{},
	"PolicySpec": PolicySpec{}, "PolicyStatus": PolicyStatus{},
	"ApplyParams": ApplyParams{}, "ReplaceParams": ReplaceParams{}, "DeleteParams": DeleteParams{},
	"ChangeResult": ChangeResult{}, "ReloadResult": ReloadResult{},
	"GetParams": GetParams{}, "ListParams": ListParams{}, "ListResult": ListResult{},
	"RollbackParams": RollbackParams{}, "ConfirmParams": ConfirmParams{}, "ConfirmResult": ConfirmResult{},
	"HistoryParams": HistoryParams{}, "HistoryResult": HistoryResult{},
	"ChangesParams": ChangesParams{}, "ChangesResult": ChangesResult{},
	"ConnectionsListParams": ConnectionsListParams{}, "ConnectionsListResult": ConnectionsListResult{},
	"ConnectionsFlushParams": ConnectionsFlushParams{}, "ConnectionsFlushResult": ConnectionsFlushResult{},
	"NetworkListParams": NetworkListParams{}, "NetworkListResult": NetworkListResult{},
	"CountersParams": CountersParams{}, "CountersResult": CountersResult{},
	"VersionResult": VersionResult{}, "StatusResult": StatusResult{}, "StatusParams": StatusParams{},
	"ChangeEvent": ChangeEvent{}, "StatusEvent": StatusEvent{}, "DropEvent": DropEvent{}, "FirewallEvent": FirewallEvent{}, "PolicyEvent": PolicyEvent{}, "HelloEvent": HelloEvent{},
	"EventsListParams": EventsListParams{}, "EventsListResult": EventsListResult{},
}

func page(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func strict(text string, v any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("something comes after the object: %v", err)
	}
	return nil
}

// TestDocumentedExamples decodes each example on the page as the type that the example names.
func TestDocumentedExamples(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)```json (\\w+)\n(.*?)```").FindAllStringSubmatch(page(t), -1) {
		name, text := m[1], m[2]
		zero, ok := documented[name]
		if !ok {
			t.Errorf("an example of %s, which is not in documented", name)
			continue
		}
		seen[name] = true
		v := reflect.New(reflect.TypeOf(zero))
		if err := strict(text, v.Interface()); err != nil {
			t.Errorf("%s: %v in\n%s", name, err, text)
			continue
		}
		// Object keeps spec and status as raw JSON, so the specs of Services are decoded here.
		var objects struct{ Objects, Items []Object }
		if json.Unmarshal([]byte(text), &objects) == nil {
			for _, o := range append(objects.Objects, objects.Items...) {
				if o.Spec != nil && o.Kind == KindService {
					if err := strict(string(o.Spec), &ServiceSpec{}); err != nil {
						t.Errorf("%s: spec of %s: %v", name, o.Name, err)
					}
				}
			}
		}
	}
	for name := range documented {
		if !seen[name] {
			t.Errorf("no example of %s", name)
		}
	}
}

// fields adds the wire names of all fields of v, including nested ones, to the map into.
func fields(v reflect.Type, into map[string]string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		fields(v.Elem(), into)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" {
				into[name] = v.Name() + "." + f.Name
			}
			fields(f.Type, into)
		}
	}
}

// TestEverythingIsDocumented checks that the page contains every wire name, in inline code or in an
// example.
func TestEverythingIsDocumented(t *testing.T) {
	text := page(t)
	names := map[string]string{}
	for _, v := range documented {
		fields(reflect.TypeOf(v), names)
	}
	fields(reflect.TypeOf(ConnectionEvent{}), names)
	for name, field := range names {
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, `"`+name+`":`) {
			t.Errorf("%s, %q on the wire, is not on the page", field, name)
		}
	}
	var words []string
	words = append(words, Topics...)
	words = append(words, TopicHello)
	words = append(words, Kinds...)
	words = append(words, OwnerCLI, OwnerFile, StatePending, StateReady, StateError)
	for _, w := range words {
		if !strings.Contains(text, "`"+w+"`") {
			t.Errorf("%q is not on the page", w)
		}
	}
	for _, list := range [][]string{
		Algorithms, SourceModes, NoBackends, OtherPorts, BackendStates, HealthTypes, Netns, Roles, XDPModes, RouteTypes, TunnelTypes,
		NATTypes, NATBehaviours, FirewallActions, FirewallHooks, MirrorDirections, Owners, Protocols,
		PolicyActions, PolicyStages, PolicyDirections, IsolateActions, TierPeers, LabelOperators,
	} {
		for _, w := range list {
			if !regexp.MustCompile(`\b` + w + `\b`).MatchString(text) {
				t.Errorf("%q is not on the page", w)
			}
		}
	}
	for _, method := range []string{
		MethodVersion, MethodStatus, MethodApply, MethodReplace, MethodDelete, MethodGet, MethodList,
		MethodReload, MethodRollback, MethodConfirm, MethodHistory, MethodConnectionsList, MethodConnectionsFlush, MethodCounters,
		MethodCNI, MethodAddressesList, MethodCapacity, MethodEventsList,
	} {
		if !strings.Contains(text, "\n### "+method+"\n") {
			t.Errorf("method %s has no section", method)
		}
	}
	for _, r := range []Reason{
		ReasonInvalid, ReasonNotFound, ReasonConflict, ReasonCapacity, ReasonDenied,
		ReasonUnsupported, ReasonUnavailable, ReasonTimeout, ReasonInternal,
	} {
		if line := fmt.Sprintf("\n| %d | `%s` |", r.Code(), r); !strings.Contains(text, line) {
			t.Errorf("no line %q", line)
		}
	}
	for _, code := range []int{CodeParse, CodeInvalidRequest, CodeMethodNotFound, CodeInvalidParams} {
		if line := fmt.Sprintf("\n| %d |", code); !strings.Contains(text, line) {
			t.Errorf("no line %q", line)
		}
	}
	for _, action := range []string{ActionCreated, ActionUpdated, ActionUnchanged, ActionDeleted, ActionAbsent} {
		if !regexp.MustCompile(`\b` + action + `\b`).MatchString(text) {
			t.Errorf("action %s is not on the page", action)
		}
	}
}

// TestDocumentedLinks follows the links within the page.
func TestDocumentedLinks(t *testing.T) {
	text := page(t)
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		if !anchors[m[1]] {
			t.Errorf("no heading for #%s", m[1])
		}
	}
	if bytes.Count([]byte(text), []byte("```"))%2 != 0 {
		t.Error("a fence is not closed")
	}
}
