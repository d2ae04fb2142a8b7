// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"
)

// errDamaged is wrapped by errors about data on disk that is not as it was written.
var errDamaged = errors.New("damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal writes a checksum of key and payload before the payload, which begins at buf[4], and
// returns the checksum.
func seal(key string, buf []byte) uint32 {
	crc := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, buf[4:])
	binary.LittleEndian.PutUint32(buf, crc)
	return crc
}

// unseal is the reverse of seal. The returned payload is a slice of record.
func unseal(key string, record []byte) (payload []byte, crc uint32, ok bool) {
	if len(record) < 4 {
		return nil, 0, false
	}
	crc = crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, record[4:])
	return record[4:], crc, binary.LittleEndian.Uint32(record) == crc
}

// encodeObject returns the record of o and stores its checksum in o.
func encodeObject(o *Object) []byte {
	record, crc := recordOf(o)
	o.crc = crc
	return record
}

// recordOf returns the record of o: checksum, revision, owner, labels, spec.
func recordOf(o *Object) (record []byte, crc uint32) {
	buf := make([]byte, 4, 4+16+len(o.Owner)+len(o.Spec)+64*len(o.Labels))
	buf = binary.AppendUvarint(buf, o.Revision)
	buf = appendString(buf, o.Owner)
	buf = binary.AppendUvarint(buf, uint64(len(o.Labels)))
	for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
		buf = appendString(appendString(buf, k), o.Labels[k])
	}
	buf = append(buf, o.Spec...)
	crc = seal(o.Key.String(), buf)
	return buf, crc
}

func appendString(buf []byte, s string) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(s))), s...)
}

// decodeObject is the reverse of encodeObject; Value is left unset. It does not retain any part of
// record.
func decodeObject(key string, record []byte) (*Object, bool) {
	payload, crc, ok := unseal(key, record)
	kind, name, named := strings.Cut(key, "/")
	if !ok || !named {
		return nil, false
	}
	r := reader{rest: payload}
	o := &Object{Key: Key{kindName(kind), name}, crc: crc}
	o.Revision = r.uvarint()
	o.Owner = r.string()
	if n := r.uvarint(); n > 0 && n <= uint64(len(r.rest)) {
		o.Labels = make(map[string]string, n)
		for range n {
			k := r.string()
			o.Labels[k] = r.string()
		}
	} else if n > 0 {
		r.bad = true
	}
	o.Spec = string(r.rest)
	return o, !r.bad
}

// kindName returns the constant for a known kind, so that objects share the string.
func kindName(kind string) string {
	for _, k := range Kinds {
		if k == kind {
			return k
		}
	}
	return kind
}

// reader reads values from the beginning of rest; bad is set after a failed read.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) time() time.Time {
	if len(r.rest) < 8 {
		r.bad, r.rest = true, nil
		return time.Time{}
	}
	ns := int64(binary.LittleEndian.Uint64(r.rest))
	r.rest = r.rest[8:]
	return time.Unix(0, ns).UTC()
}

func (r *reader) string() string {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// head is the record of the store as a whole.
type head struct {
	format   uint64
	revision uint64
	count    uint64 // number of objects
	sum      uint64 // sum of the checksums of all objects, so that a missing object is detected
}

// format is the version of the record format.
const format = 1

const headKey = "head"

func (h head) encode() []byte {
	buf := make([]byte, 4, 4+4*8)
	for _, v := range []uint64{h.format, h.revision, h.count, h.sum} {
		buf = binary.LittleEndian.AppendUint64(buf, v)
	}
	seal(headKey, buf)
	return buf
}

func decodeHead(record []byte) (h head, ok bool) {
	payload, _, ok := unseal(headKey, record)
	if !ok || len(payload) != 4*8 {
		return h, false
	}
	for i, v := range []*uint64{&h.format, &h.revision, &h.count, &h.sum} {
		*v = binary.LittleEndian.Uint64(payload[8*i:])
	}
	return h, true
}
