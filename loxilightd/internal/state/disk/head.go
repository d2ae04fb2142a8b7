// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"encoding/binary"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Head is the record of the store as a whole.
type Head struct {
	Revision uint64
	Count    uint64 // number of objects
	Sum      uint64 // sum of the checksums of all objects, so that a missing object is detected
}

// format is the version of the record format.
const format = 1

const headKey = "head"

func (h Head) encode() []byte {
	buf := make([]byte, record.SumSize, record.SumSize+4*8)
	for _, v := range []uint64{format, h.Revision, h.Count, h.Sum} {
		buf = binary.LittleEndian.AppendUint64(buf, v)
	}
	record.Seal(headKey, buf)
	return buf
}

// decodeHead is the reverse of encode. It also returns the version of the format.
func decodeHead(sealed []byte) (h Head, version uint64, ok bool) {
	payload, _, ok := record.Unseal(headKey, sealed)
	if !ok || len(payload) != 4*8 {
		return h, 0, false
	}
	for i, v := range []*uint64{&version, &h.Revision, &h.Count, &h.Sum} {
		*v = binary.LittleEndian.Uint64(payload[8*i:])
	}
	return h, version, true
}
