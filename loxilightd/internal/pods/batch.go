// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/loxilight/loxilight/api"
)

// batch combines concurrent changes to the desired state into a few durable changes: while one is
// being written, the next changes are collected.
type batch struct {
	objects Objects
	jobs    chan *job
}

type job struct {
	puts    []api.Object
	deletes []api.ObjectRef

	begun    atomic.Bool // run has begun the change, or do has withdrawn it
	revision uint64
	err      *api.Error
	done     chan struct{}
}

// maxBatch is the maximum number of changes in one batch.
const maxBatch = 128

func newBatch(o Objects) *batch { return &batch{objects: o, jobs: make(chan *job, maxBatch)} }

// do makes a change. If ctx ends before the change has begun, the change is withdrawn. A change that
// has begun is completed, and do returns its result even if ctx ends.
func (b *batch) do(ctx context.Context, puts []api.Object, deletes []api.ObjectRef) (uint64, *api.Error) {
	j := &job{puts: puts, deletes: deletes, done: make(chan struct{})}
	select {
	case b.jobs <- j:
	case <-ctx.Done():
		return 0, unavailable("the daemon is busy: %v", context.Cause(ctx))
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if j.begun.CompareAndSwap(false, true) {
			return 0, unavailable("the daemon is busy: %v", context.Cause(ctx))
		}
		<-j.done
	}
	return j.revision, j.err
}

// run commits batches of changes until ctx ends.
func (b *batch) run(ctx context.Context) {
	for {
		var jobs []*job
		select {
		case j := <-b.jobs:
			jobs = append(jobs, j)
		case <-ctx.Done():
			return
		}
		for more := true; more && len(jobs) < maxBatch; {
			select {
			case j := <-b.jobs:
				jobs = append(jobs, j)
			default:
				more = false
			}
		}
		jobs = slices.DeleteFunc(jobs, func(j *job) bool { return !j.begun.CompareAndSwap(false, true) })
		b.commit(jobs)
	}
}

// commit makes the changes in one transaction. If that fails, it makes each change by itself, so
// that no change fails because of another.
func (b *batch) commit(jobs []*job) {
	all := &job{}
	seen := map[api.ObjectRef]string{} // spec of each put object; empty: deleted
	twice := false
	for _, j := range jobs {
		for _, o := range j.puts {
			ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
			if spec, ok := seen[ref]; ok {
				twice = twice || spec != string(o.Spec)
				continue
			}
			seen[ref] = string(o.Spec)
			all.puts = append(all.puts, o)
		}
		for _, ref := range j.deletes {
			_, ok := seen[ref]
			twice = twice || ok
			seen[ref] = ""
			all.deletes = append(all.deletes, ref)
		}
	}
	var err *api.Error
	var revision uint64
	if len(jobs) > 1 && !twice {
		revision, err = b.objects.Change(all.puts, all.deletes)
	}
	for _, j := range jobs {
		if j.revision = revision; len(jobs) == 1 || twice || err != nil {
			j.revision, j.err = b.objects.Change(j.puts, j.deletes)
		}
		close(j.done)
	}
}
