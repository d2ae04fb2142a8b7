// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

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
	buf := make([]byte, record.SumSize, record.SumSize+4*8)
	for _, v := range []uint64{h.format, h.revision, h.count, h.sum} {
		buf = binary.LittleEndian.AppendUint64(buf, v)
	}
	record.Seal(headKey, buf)
	return buf
}

func decodeHead(sealed []byte) (h head, ok bool) {
	payload, _, ok := record.Unseal(headKey, sealed)
	if !ok || len(payload) != 4*8 {
		return h, false
	}
	for i, v := range []*uint64{&h.format, &h.revision, &h.count, &h.sum} {
		*v = binary.LittleEndian.Uint64(payload[8*i:])
	}
	return h, true
}
