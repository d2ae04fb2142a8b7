// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/binary"
	"testing"
	"time"
)

// TestSeal: a record is rejected if it is damaged, shorter, or under another key.
func TestSeal(t *testing.T) {
	buf := append(make([]byte, SumSize), "content"...)
	sum := Seal("key", buf)
	if payload, crc, ok := Unseal("key", buf); string(payload) != "content" || crc != sum || !ok {
		t.Errorf("%q, %x, %t, want the content with %x", payload, crc, ok, sum)
	}
	if _, _, ok := Unseal("kez", buf); ok {
		t.Error("accepted under another key")
	}
	for n := range len(buf) {
		if _, _, ok := Unseal("key", buf[:n]); ok {
			t.Errorf("accepted with %d of %d bytes", n, len(buf))
		}
		buf[n] ^= 4
		if _, _, ok := Unseal("key", buf); ok {
			t.Errorf("accepted with byte %d changed", n)
		}
		buf[n] ^= 4
	}
}

// TestReader reads what was appended, and then every shorter beginning of it.
func TestReader(t *testing.T) {
	at := time.Unix(7, 123456789).UTC()
	buf := binary.AppendUvarint(nil, 300)
	buf = binary.AppendVarint(buf, -5)
	buf = AppendString(buf, "text")
	buf = append(buf, 9)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(at.UnixNano()))
	minus := int64(-8)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(minus))
	read := func(r *Reader) bool {
		u, v, s, b, a, n := r.Uvarint(), r.Varint(), r.Text(), r.Byte(), r.Time(), r.Int64()
		return u == 300 && v == -5 && s == "text" && b == 9 && a.Equal(at) && n == -8
	}
	if r := (&Reader{Rest: buf}); !read(r) || r.Bad || len(r.Rest) != 0 {
		t.Errorf("read wrongly; bad %t, %d bytes left", r.Bad, len(r.Rest))
	}
	for n := range len(buf) {
		r := &Reader{Rest: buf[:n]}
		if read(r); !r.Bad {
			t.Errorf("%d of %d bytes are enough", n, len(buf))
		}
	}
}
