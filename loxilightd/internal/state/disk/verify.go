// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"
)

// bbolt maps its file and follows the pointers in it: a damaged file can make it read outside the
// mapping, loop forever or allocate all memory, which cannot be caught reliably. Therefore, the
// file is checked before bbolt opens it. The layout is that of bbolt's file format 2, in native
// byte order.
const (
	headerLen  = 16 // length of a page header: id, flags, count, overflow
	elementLen = 16
	metaLen    = 64
	metaSum    = 56 // offset of the checksum, FNV-1a of all preceding bytes
	bucketLen  = 16 // length of a bucket's value: root page, sequence

	pageBranch   = 0x01
	pageLeaf     = 0x02
	pageFreelist = 0x10

	magic    = 0xED0CDAED
	layout   = 2
	maxDepth = 64 // nested pages; a valid tree of any size is far less deep
	noList   = ^uint64(0)
)

var native = binary.NativeEndian

// meta is the content of the newer valid meta page; a store has two.
type meta struct {
	pageSize             int64
	root, freelist, next uint64 // page ids; next is one past the last page
	txid                 uint64
}

// walker checks the pages of a file.
type walker struct {
	file *os.File
	meta
	used []bool // pages visited so far
}

// verify checks the structure of the store at path, so that bbolt can open it safely. lost is set
// if one of the meta pages is damaged, so that the last commit may be lost. The error wraps
// ErrDamaged or ErrLocked if one of them applies.
func verify(path string) (lost bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close() // the file is only read: nothing to lose; this also releases the lock
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, ErrLocked
	} else if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	w := &walker{file: f}
	if lost, err = w.findMeta(); err != nil {
		return false, err
	}
	w.used = make([]bool, w.next)
	if err := w.page(w.root, nil, nil, 0); err != nil {
		return false, err
	}
	return lost, w.checkFreelist()
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

func (w *walker) findMeta() (lost bool, err error) {
	info, err := w.file.Stat()
	if err != nil {
		return false, err
	}
	sound := 0
	for _, at := range []int64{0, 1024, 2048, 4096, 8192, 16384, 32768, 65536} {
		m, ok := w.readMeta(at)
		if ok && (at == 0 || at == m.pageSize) {
			sound++
			if sound == 1 || m.txid > w.txid {
				w.meta = m
			}
		}
	}
	if sound == 0 {
		return false, bad("no sound meta page")
	}
	if w.next < 2 || int64(w.next) > info.Size()/w.pageSize {
		return false, bad("%d bytes long, want %d pages of %d", info.Size(), w.next, w.pageSize)
	}
	return sound == 1, nil
}

func (w *walker) readMeta(at int64) (m meta, ok bool) {
	var b [metaLen]byte
	if _, err := w.file.ReadAt(b[:], at+headerLen); err != nil {
		return m, false
	}
	sum := fnv.New64a()
	sum.Write(b[:metaSum]) // never fails
	if sum.Sum64() != native.Uint64(b[metaSum:]) || native.Uint32(b[:]) != magic || native.Uint32(b[4:]) != layout {
		return m, false
	}
	m = meta{
		pageSize: int64(native.Uint32(b[8:])), root: native.Uint64(b[16:]), freelist: native.Uint64(b[32:]),
		next: native.Uint64(b[40:]), txid: native.Uint64(b[48:]),
	}
	return m, m.pageSize >= 1024
}

// read returns page id with its overflow pages and marks all of them as used.
func (w *walker) read(id uint64) (page []byte, err error) {
	if id < 2 || id >= w.next {
		return nil, bad("page %d of %d", id, w.next)
	}
	header := make([]byte, headerLen)
	if _, err := w.file.ReadAt(header, int64(id)*w.pageSize); err != nil {
		return nil, bad("page %d: %v", id, err)
	}
	overflow := uint64(native.Uint32(header[12:]))
	if native.Uint64(header) != id || overflow >= w.next-id {
		return nil, bad("page %d has the id %d and is %d pages long", id, native.Uint64(header), overflow+1)
	}
	for i := id; i <= id+overflow; i++ {
		if w.used[i] {
			return nil, bad("page %d is used twice", i)
		}
		w.used[i] = true
	}
	page = make([]byte, int64(overflow+1)*w.pageSize)
	if _, err := w.file.ReadAt(page, int64(id)*w.pageSize); err != nil {
		return nil, bad("page %d: %v", id, err)
	}
	return page, nil
}

// page checks the page with the given id and all pages below it. Its keys must be at least low and
// less than high; nil is no bound.
func (w *walker) page(id uint64, low, high []byte, depth int) error {
	page, err := w.read(id)
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return bad("page %d is %d levels deep", id, depth)
	}
	return w.elements(page, fmt.Sprint(id), low, high, depth)
}

// elements checks the elements of a branch or leaf page, and all pages below it.
func (w *walker) elements(page []byte, id string, low, high []byte, depth int) error {
	flags, count := native.Uint16(page[8:]), int(native.Uint16(page[10:]))
	if flags != pageBranch && flags != pageLeaf || headerLen+count*elementLen > len(page) || flags == pageBranch && count == 0 {
		return bad("page %s: flags %#x, %d elements", id, flags, count)
	}
	last := low
	keys := make([][]byte, count, count+1)
	for i := range count {
		at := headerLen + i*elementLen
		pos, keyLen, valueLen := uint64(native.Uint32(page[at:])), uint64(native.Uint32(page[at+4:])), uint64(0)
		if flags == pageLeaf {
			pos, keyLen, valueLen = keyLen, uint64(native.Uint32(page[at+8:])), uint64(native.Uint32(page[at+12:]))
		}
		from := uint64(at) + pos
		if pos < elementLen || from+keyLen+valueLen > uint64(len(page)) {
			return bad("page %s: element %d is outside", id, i)
		}
		key := page[from : from+keyLen]
		if c := bytes.Compare(last, key); c > 0 || c == 0 && i > 0 || high != nil && bytes.Compare(key, high) >= 0 {
			return bad("page %s: element %d is out of order", id, i)
		}
		keys[i], last = key, key
		if flags == pageLeaf && native.Uint32(page[at:])&1 != 0 {
			if err := w.bucket(page[from+keyLen:from+keyLen+valueLen], id, depth+1); err != nil {
				return err
			}
		}
	}
	if flags == pageLeaf {
		return nil
	}
	keys = append(keys, high)
	for i := range count {
		if err := w.page(native.Uint64(page[headerLen+i*elementLen+8:]), keys[i], keys[i+1], depth+1); err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket: either a separate tree, or an inline page within its parent.
func (w *walker) bucket(value []byte, id string, depth int) error {
	if len(value) < bucketLen {
		return bad("page %s: a bucket of %d bytes", id, len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return w.page(root, nil, nil, depth)
	}
	inline := value[bucketLen:]
	if len(inline) < headerLen || native.Uint16(inline[8:]) != pageLeaf || depth > maxDepth {
		return bad("page %s: it contains an invalid bucket", id)
	}
	return w.elements(inline, id, nil, nil, depth)
}

// checkFreelist checks that no page on the free list is in use, because free pages will be
// overwritten.
func (w *walker) checkFreelist() error {
	if w.freelist == noList {
		return nil
	}
	page, err := w.read(w.freelist)
	if err != nil {
		return err
	}
	ids, count := page[headerLen:], uint64(native.Uint16(page[10:]))
	if count == 0xFFFF { // more than the header can express
		count, ids = native.Uint64(ids), ids[8:]
	}
	if native.Uint16(page[8:]) != pageFreelist || count > uint64(len(ids)/8) {
		return bad("page %d: no list of %d free pages", w.freelist, count)
	}
	for i := range count {
		id := native.Uint64(ids[8*i:])
		if id < 2 || id >= w.next || w.used[id] {
			return bad("page %d is both free and in use", id)
		}
		w.used[id] = true
	}
	return nil
}
