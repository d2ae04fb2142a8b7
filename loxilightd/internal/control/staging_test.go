// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

func staged(name string, last int) string {
	return fmt.Sprintf(`{"kind":"Service","name":"%s","spec":{"frontends":["10.96.0.%d:80/tcp"]}}`, name, last)
}

func (h *harness) stage(method, params string, want int) {
	h.t.Helper()
	r := result[api.ChangeResult](h, method, params)
	if r.Staged != want || len(r.Changes) != 0 {
		h.t.Errorf("%s: %d objects are staged, want %d", decode.Shorten(params), r.Staged, want)
	}
}

func TestStagedReplace(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[`+strings.Replace(staged("old", 9), `"spec"`, `"owner":"k8s","spec"`, 1)+`]}`)
	head := `{"transaction":"t1","owner":"k8s","kinds":["Service"],"objects":[`
	h.stage("replace", head+staged("a", 1)+","+staged("b", 2)+`],"more":true}`, 2)
	h.stage("replace", head+staged("c", 3)+`],"more":true}`, 3)
	if h.Store.Snapshot().Len() != 1 {
		t.Error("a staged object is in the store")
	}
	commit := head + staged("d", 4) + `],"requestID":"r"}`
	answer := `{"revision":2,"changes":[{"kind":"Service","name":"a","action":"created"},{"kind":"Service","name":"b","action":"created"},` +
		`{"kind":"Service","name":"c","action":"created"},{"kind":"Service","name":"d","action":"created"},{"kind":"Service","name":"old","action":"deleted"}],` +
		`"summary":{"created":4,"deleted":1}}`
	h.want("replace", commit, answer)
	// A repeated commit gets the same answer, although the transaction no longer exists.
	h.want("replace", commit, answer)
	h.wantError("replace", head+`]}`, 3, "", "transaction", "not known")
	if h.staging.count != 0 || len(h.staging.byID) != 0 {
		t.Errorf("%d objects of %d transactions are kept", h.staging.count, len(h.staging.byID))
	}
}

func TestStagedFaults(t *testing.T) {
	h := newHarness(t)
	stage := func(name string) {
		h.stage("apply", `{"transaction":"`+name+`","more":true,"objects":[`+staged("a", 1)+","+staged("b", 2)+`]}`, 2)
	}
	stage("bad")
	h.wantError("apply", `{"transaction":"bad","more":true,"objects":[`+staged("c", 3)+`,{"kind":"Servise","name":"d"}]}`,
		1, "", "objects[3].kind", "Servise")
	h.wantError("apply", `{"transaction":"bad","objects":[]}`, 3, "", "transaction", "not known")
	stage("other")
	h.wantError("delete", `{"transaction":"other","objects":[{"kind":"Service","name":"a"}]}`, 1, "", "transaction", "began as apply")
	stage("clash")
	h.wantError("apply", `{"transaction":"clash","objects":[`+staged("c", 2)+`]}`, 3, "Service/c", "spec.frontends[0]", "Service/b")
	h.wantError("apply", `{"transaction":"clash","objects":[]}`, 3, "", "transaction", "not known")
	h.wantError("apply", `{"transaction":"never","objects":[]}`, 3, "", "transaction", "not known")
	stage("mine")
	other := Caller{UID: 1, Admin: true}
	checkError(t, "another client", h.ask(other, "apply", `{"transaction":"mine","objects":[]}`), 3, "", "transaction", "not known")
	if h.Store.Snapshot().Len() != 0 {
		t.Error("something was applied")
	}
	h.want("apply", `{"transaction":"mine","objects":[]}`,
		`{"revision":1,"changes":[{"kind":"Service","name":"a","action":"created"},{"kind":"Service","name":"b","action":"created"}],"summary":{"created":2}}`)
}

// TestStagesAreBounded: unfinished transactions are limited in number, objects and lifetime.
func TestStagesAreBounded(t *testing.T) {
	h := newHarness(t)
	for i := range maxStages {
		h.stage("apply", fmt.Sprintf(`{"transaction":"t%d","more":true,"objects":[%s]}`, i, staged("a", 1)), 1)
	}
	h.wantError("apply", `{"transaction":"x","more":true,"objects":[]}`, 7, "", "", "no room for another")
	h.stage("apply", `{"transaction":"t0","more":true,"objects":[`+staged("b", 2)+`]}`, 2)
	// This does what the timer does.
	st := h.staging.byID[stageID{0, "t1"}]
	st.mu.Lock()
	h.staging.drop(stageID{0, "t1"}, st)
	st.mu.Unlock()
	h.wantError("apply", `{"transaction":"t1","objects":[]}`, 3, "", "transaction", "not known")
	if h.staging.count != maxStages || len(h.staging.byID) != maxStages-1 {
		t.Errorf("%d objects of %d transactions", h.staging.count, len(h.staging.byID))
	}
	h.stage("apply", `{"transaction":"x","more":true,"objects":[]}`, 0)
	h.staging.count = maxStagedObject
	h.wantError("apply", `{"transaction":"x","more":true,"objects":[`+staged("a", 1)+`]}`, 7, "", "", "no room for 1 more")
}
