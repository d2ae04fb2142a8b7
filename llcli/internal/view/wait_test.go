// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// slowDaemon lists one object, which is not Ready, after a pause. Nothing changes afterwards.
type slowDaemon struct {
	command.Daemon
	pause time.Duration
}

func (d slowDaemon) Watch(ctx context.Context, _ client.WatchOptions) iter.Seq2[client.Watched, error] {
	return func(yield func(client.Watched, error) bool) {
		select {
		case <-time.After(d.pause):
		case <-ctx.Done():
			return
		}
		ref := api.ObjectRef{Kind: api.KindService, Name: "web"}
		object := &api.Object{Kind: ref.Kind, Name: ref.Name, Status: json.RawMessage(`{"state":"Pending","message":"no backend"}`)}
		if yield(client.Watched{Ref: ref, Object: object}, nil) && yield(client.Watched{Synced: true}, nil) {
			<-ctx.Done()
		}
	}
}

// TestWaitSlowDaemon: a daemon that lists its objects only after the time limit does not make
// llcli say that an object is absent.
func TestWaitSlowDaemon(t *testing.T) {
	for name, want := range map[string]struct {
		reason api.Reason
		state  string
	}{
		"web":    {api.ReasonTimeout, api.StatePending},
		"nosuch": {api.ReasonNotFound, ""},
	} {
		wanted := []api.ObjectRef{{Kind: api.KindService, Name: name}}
		err := waitReady(t.Context(), &command.App{}, slowDaemon{pause: 50 * time.Millisecond}, []string{api.KindService}, wanted, false, time.Millisecond)
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Data.Reason != want.reason {
			t.Errorf("%s: %v, want reason %s", name, err, want.reason)
			continue
		}
		if want.state != "" && (len(refused.Data.NotReady) != 1 || refused.Data.NotReady[0].State != want.state) {
			t.Errorf("%s: not Ready: %+v, want one object in state %s", name, refused.Data.NotReady, want.state)
		}
	}
}

// TestWaitInterrupted: the end of the caller's context is not a time-out.
func TestWaitInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wanted := []api.ObjectRef{{Kind: api.KindService, Name: "web"}}
	if err := waitReady(ctx, &command.App{}, slowDaemon{pause: time.Minute}, []string{api.KindService}, wanted, false, time.Minute); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
