// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// TameLibraries moves client-go's own messages to the debug level: client-go logs an error for
// each attempt to reach the API server, which we log once.
func TameLibraries(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(demoted{log.With(slog.String("library", "client-go")).Handler()}))
}

// demoted logs everything as debug.
type demoted struct{ slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	if !d.Handler.Enabled(ctx, r.Level) { // klog does not check this
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
