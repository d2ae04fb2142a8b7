// SPDX-License-Identifier: Apache-2.0

package kernel

// segmentBlocksMax is the largest number of blocks of a segment: an index has 20 bits for it.
const segmentBlocksMax = 1 << (32 - blockShift)

// ConnBlocks returns the number of blocks of a table for n connections: both entries of each, and
// an eighth more, so that new entries find a place near their home.
func ConnBlocks(n uint32) uint32 { return uint32(max(1, (uint64(n)*36+1023)/1024)) }

// SegmentsFor returns the most segments of a table for up to n connections which begins with at
// least min; 0: with n. A table of more than 29 million connections always begins with less.
func SegmentsFor(min, n uint32) uint32 {
	if min == 0 || min > n {
		min = n
	}
	all, segments := ConnBlocks(n), uint32(1)
	for segments < ConnSegments && (all/(2*segments) >= ConnBlocks(min) || all/segments > segmentBlocksMax) {
		segments *= 2
	}
	return segments
}

// SegmentBlocks returns the number of blocks of a segment of such a table.
func SegmentBlocks(min, n uint32) uint32 {
	segments := SegmentsFor(min, n)
	return (ConnBlocks(n) + segments - 1) / segments
}

// ConnCapacity is the number of connections for which a table with that many entries was made.
func ConnCapacity(entries uint32) uint32 { return uint32(uint64(entries) * 4 / 9) }
