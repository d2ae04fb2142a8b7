// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Limits on the stored request ids: the oldest ids are deleted.
const (
	maxRequests     = 4096
	maxRequestBytes = 8 << 20
)

// Reply is the stored reply to a request.
type Reply struct {
	RequestID string // empty: no reply is stored
	Answer    []byte
}

// requests maps each stored request to the position of its answer on disk.
type requests struct {
	byID  map[string]uint64
	order []remembered // oldest first
	bytes int
}

type remembered struct {
	seq   uint64
	id    string
	bytes int
	evict int // how many of the oldest were deleted to make room for it
}

func encodeRequest(seq uint64, id string, answer []byte) []byte {
	buf := append(record.AppendString(make([]byte, record.SumSize), id), answer...)
	record.Seal(string(record.NumberKey(seq)), buf)
	return buf
}

// decodeRequest is the reverse of encodeRequest. It does not retain any part of sealed.
func decodeRequest(seq uint64, sealed []byte) (id string, answer []byte, err error) {
	payload, _, ok := record.Unseal(string(record.NumberKey(seq)), sealed)
	r := record.Reader{Rest: payload}
	id = r.Text()
	if !ok || r.Bad {
		return "", nil, fmt.Errorf("%w: request %d", ErrDamaged, seq)
	}
	return id, append([]byte{}, r.Rest...), nil
}

func (q *requests) load(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("%w: request %q", ErrDamaged, k)
		}
		seq := binary.BigEndian.Uint64(k)
		id, _, err := decodeRequest(seq, v)
		if err == nil {
			q.note(&remembered{seq: seq, id: id, bytes: len(v)})
		}
		return err
	})
}

func (q *requests) find(id string) (seq uint64, ok bool) {
	seq, ok = q.byID[id]
	return seq, ok
}

// put writes a reply and deletes the oldest answers that exceed the limits. The caller passes the
// result to note once the transaction is durable.
func (q *requests) put(b *bbolt.Bucket, reply Reply) (*remembered, error) {
	r := &remembered{id: reply.RequestID, seq: 1}
	if n := len(q.order); n > 0 {
		r.seq = q.order[n-1].seq + 1
	}
	sealed := encodeRequest(r.seq, reply.RequestID, reply.Answer)
	r.bytes = len(sealed)
	count, bytes := len(q.order)+1, q.bytes+r.bytes
	for ; r.evict < len(q.order) && (count > maxRequests || bytes > maxRequestBytes); r.evict++ {
		old := q.order[r.evict]
		if err := b.Delete(record.NumberKey(old.seq)); err != nil {
			return nil, err
		}
		count, bytes = count-1, bytes-old.bytes
	}
	return r, b.Put(record.NumberKey(r.seq), sealed)
}

// note updates q after put.
func (q *requests) note(r *remembered) {
	if r == nil {
		return
	}
	if q.byID == nil {
		q.byID = map[string]uint64{}
	}
	for _, old := range q.order[:r.evict] {
		delete(q.byID, old.id)
		q.bytes -= old.bytes
	}
	q.order = append(slices.Delete(q.order, 0, r.evict), *r)
	q.byID[r.id] = r.seq
	q.bytes += r.bytes
}
