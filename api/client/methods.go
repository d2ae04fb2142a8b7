// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"iter"
	"time"

	"github.com/loxilight/loxilight/api"
)

// call is like [Client.Call], but returns the result.
func call[R any](ctx context.Context, c *Client, method string, params any) (*R, error) {
	result := new(R)
	if err := c.Call(ctx, method, params, result); err != nil {
		return nil, err
	}
	return result, nil
}

// Version returns the daemon's version.
func (c *Client) Version(ctx context.Context) (*api.VersionResult, error) {
	return call[api.VersionResult](ctx, c, api.MethodVersion, nil)
}

// Status returns the state of the daemon and its data plane.
func (c *Client) Status(ctx context.Context) (*api.StatusResult, error) {
	return call[api.StatusResult](ctx, c, api.MethodStatus, nil)
}

// Get returns one object. A missing one is an [*api.Error] with [api.ReasonNotFound].
func (c *Client) Get(ctx context.Context, kind, name string) (*api.Object, error) {
	return call[api.Object](ctx, c, api.MethodGet, api.GetParams{Kind: kind, Name: name})
}

// Counters returns the counters of an object, or of the node if kind and name are empty.
func (c *Client) Counters(ctx context.Context, kind, name string) (*api.CountersResult, error) {
	return call[api.CountersResult](ctx, c, api.MethodCounters, api.CountersParams{Kind: kind, Name: name})
}

// Changes returns the changes made after the revision that since gives. If Expired is set in the
// result, the daemon no longer knows them: list the objects instead.
func (c *Client) Changes(ctx context.Context, since uint64) (*api.ChangesResult, error) {
	all := &api.ChangesResult{Revision: since}
	for {
		page, err := call[api.ChangesResult](ctx, c, api.MethodChanges, api.ChangesParams{Since: all.Revision})
		if err != nil {
			return nil, err
		}
		all.Revision, all.Expired = page.Revision, page.Expired
		all.Changes = append(all.Changes, page.Changes...)
		if !page.More || page.Expired {
			return all, nil
		}
	}
}

// List iterates over the objects that params select, page by page; an error ends the iteration.
// params.Limit is the size of a page. An object that is deleted before its page is read is left
// out.
func (c *Client) List(ctx context.Context, params api.ListParams) iter.Seq2[api.Object, error] {
	return pages(func(from string) ([]api.Object, string, error) {
		params.Continue = from
		page, err := call[api.ListResult](ctx, c, api.MethodList, params)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, params.Continue)
}

// Connections iterates over the tracked connections that params select, page by page; an error ends
// the iteration. params.Limit is the size of a page.
func (c *Client) Connections(ctx context.Context, params api.ConnectionsListParams) iter.Seq2[api.Connection, error] {
	return pages(func(from string) ([]api.Connection, string, error) {
		params.Continue = from
		page, err := call[api.ConnectionsListResult](ctx, c, api.MethodConnectionsList, params)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, params.Continue)
}

// Network iterates over the kernel's own forwarding state, page by page; an error ends the
// iteration. params.Limit is the size of a page.
func (c *Client) Network(ctx context.Context, params api.NetworkListParams) iter.Seq2[api.NetworkEntry, error] {
	return pages(func(from string) ([]api.NetworkEntry, string, error) {
		params.Continue = from
		page, err := call[api.NetworkListResult](ctx, c, api.MethodNetworkList, params)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, params.Continue)
}

// pages yields the items of all pages in turn. An empty page need not be the last.
func pages[T any](read func(from string) (items []T, next string, err error), from string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			items, next, err := read(from)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			from = next
		}
	}
}

// change is like [Client.Change], but returns the result.
func change[R any](ctx context.Context, c *Client, method string, common api.Change, params any) (*R, error) {
	result := new(R)
	if err := c.Change(ctx, method, common.RequestID, time.Duration(common.Wait), params, result); err != nil {
		return nil, err
	}
	return result, nil
}

// Apply creates or updates objects, all or none.
func (c *Client) Apply(ctx context.Context, p api.ApplyParams) (*api.ChangeResult, error) {
	return change[api.ChangeResult](ctx, c, api.MethodApply, p.Change, p)
}

// Replace makes an owner's objects of the given kinds exactly the given objects, all or none.
func (c *Client) Replace(ctx context.Context, p api.ReplaceParams) (*api.ChangeResult, error) {
	return change[api.ChangeResult](ctx, c, api.MethodReplace, p.Change, p)
}

// Delete deletes objects, all or none. Deleting an object that does not exist is not an error.
func (c *Client) Delete(ctx context.Context, p api.DeleteParams) (*api.ChangeResult, error) {
	return change[api.ChangeResult](ctx, c, api.MethodDelete, p.Change, p)
}

// Rollback returns to an earlier revision, or rolls back the pending change.
func (c *Client) Rollback(ctx context.Context, p api.RollbackParams) (*api.ChangeResult, error) {
	return change[api.ChangeResult](ctx, c, api.MethodRollback, p.Change, p)
}

// Confirm makes a pending change permanent. Confirming it again is not an error.
func (c *Client) Confirm(ctx context.Context, revision uint64) (*api.ConfirmResult, error) {
	return change[api.ConfirmResult](ctx, c, api.MethodConfirm, api.Change{}, api.ConfirmParams{Revision: revision})
}

// History iterates over the revisions that the daemon remembers, latest first; an error ends the
// iteration.
func (c *Client) History(ctx context.Context) iter.Seq2[api.HistoryEntry, error] {
	return pages(func(from string) ([]api.HistoryEntry, string, error) {
		page, err := call[api.HistoryResult](ctx, c, api.MethodHistory, api.HistoryParams{Continue: from})
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, "")
}

// Reload has the daemon read its object files again.
func (c *Client) Reload(ctx context.Context) (*api.ReloadResult, error) {
	return change[api.ReloadResult](ctx, c, api.MethodReload, api.Change{}, nil)
}

// Flush ends the tracked connections that match a filter.
func (c *Client) Flush(ctx context.Context, filter api.ConnectionFilter) (*api.ConnectionsFlushResult, error) {
	return change[api.ConnectionsFlushResult](ctx, c, api.MethodConnectionsFlush, api.Change{}, api.ConnectionsFlushParams{Filter: filter})
}
