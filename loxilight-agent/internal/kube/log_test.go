// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestLibrariesAreForThoseWhoLook: client-go's messages are logged only at level debug.
func TestLibrariesAreForThoseWhoLook(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelInfo: false, slog.LevelDebug: true} {
		var b bytes.Buffer
		TameLibraries(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level})))
		klog.ErrorS(nil, "something is away")
		klog.Flush()
		if got := strings.Contains(b.String(), "something is away"); got != want {
			t.Errorf("at level %s: %q", level, b.String())
		}
	}
}
