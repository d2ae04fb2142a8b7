// SPDX-License-Identifier: Apache-2.0

// Package record encodes the records on disk. A record begins with a checksum of its key and its
// content, so that a damaged record and a record under a wrong key are detected. The package knows
// neither the content of records nor where they are stored.
package record

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// SumSize is the length in bytes of the checksum at the beginning of each record.
const SumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal writes a checksum of key and payload before the payload, which begins at buf[SumSize], and
// returns the checksum.
func Seal(key string, buf []byte) uint32 {
	crc := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, buf[SumSize:])
	binary.LittleEndian.PutUint32(buf, crc)
	return crc
}

// Unseal is the reverse of [Seal]. The returned payload is a slice of record; ok is false if the
// record is damaged.
func Unseal(key string, record []byte) (payload []byte, crc uint32, ok bool) {
	if len(record) < SumSize {
		return nil, 0, false
	}
	crc = crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, record[SumSize:])
	return record[SumSize:], crc, binary.LittleEndian.Uint32(record) == crc
}

// AppendString appends the length of s and s to buf.
func AppendString(buf []byte, s string) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(s))), s...)
}

// NumberKey returns the key of a numbered record. Such keys sort like their numbers.
func NumberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// Reader reads values from the beginning of Rest. Bad is set after a failed read.
type Reader struct {
	Rest []byte
	Bad  bool
}

// Uvarint reads an unsigned number of variable length.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.Bad, r.Rest = true, nil
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Varint reads a signed number of variable length.
func (r *Reader) Varint() int64 {
	v, n := binary.Varint(r.Rest)
	if n <= 0 {
		r.Bad, r.Rest = true, nil
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if len(r.Rest) == 0 {
		r.Bad = true
		return 0
	}
	b := r.Rest[0]
	r.Rest = r.Rest[1:]
	return b
}

// Int64 reads eight bytes in little-endian order.
func (r *Reader) Int64() int64 {
	if len(r.Rest) < 8 {
		r.Bad, r.Rest = true, nil
		return 0
	}
	n := int64(binary.LittleEndian.Uint64(r.Rest))
	r.Rest = r.Rest[8:]
	return n
}

// Time reads a time, in nanoseconds since 1970, as eight bytes in little-endian order.
func (r *Reader) Time() time.Time {
	if len(r.Rest) < 8 {
		r.Bad, r.Rest = true, nil
		return time.Time{}
	}
	ns := int64(binary.LittleEndian.Uint64(r.Rest))
	r.Rest = r.Rest[8:]
	return time.Unix(0, ns).UTC()
}

// Text reads a string that [AppendString] has appended.
func (r *Reader) Text() string {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Bad, r.Rest = true, nil
		return ""
	}
	s := string(r.Rest[:n])
	r.Rest = r.Rest[n:]
	return s
}
