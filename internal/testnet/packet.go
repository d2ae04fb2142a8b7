// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Wire sends and captures whole frames on a device.
type Wire struct {
	fd int

	mu     sync.Mutex
	frames [][]byte
	closed chan struct{}
}

// Wire opens a device for whole frames. It captures the frames that other programs send or receive
// on the device as they are on the wire; outgoing frames may have a partial checksum unless
// TxChecksum is off.
func (ns *NS) Wire(t T, device string) *Wire {
	t.Helper()
	w := &Wire{closed: make(chan struct{})}
	ns.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return fmt.Errorf("device %s: %w", device, err)
		}
		all := int(htons(unix.ETH_P_ALL))
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		// The time limit lets the reader notice the end.
		limit := unix.NsecToTimeval(int64(50 * time.Millisecond))
		if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: dev.Index})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.read()
	}()
	t.Cleanup(func() {
		close(w.closed)
		<-done
		unix.Close(w.fd)
	})
	return w
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (w *Wire) read() {
	b := make([]byte, 1<<17)
	for {
		select {
		case <-w.closed:
			return
		default:
		}
		n, _, err := unix.Recvfrom(w.fd, b, 0)
		if err != nil {
			continue // no frame arrived in time
		}
		w.mu.Lock()
		w.frames = append(w.frames, append([]byte(nil), b[:n]...))
		w.mu.Unlock()
	}
}

// Send puts a frame on the wire.
func (w *Wire) Send(t T, frame []byte) {
	t.Helper()
	if _, err := unix.Write(w.fd, frame); err != nil {
		t.Fatalf("frame of %d bytes: %v", len(frame), err)
	}
}

// Frames returns the frames captured so far.
func (w *Wire) Frames() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([][]byte(nil), w.frames...)
}

// Await waits for a frame for which match returns true, and returns the frame.
func (w *Wire) Await(t T, timeout time.Duration, what string, match func([]byte) bool) (found []byte) {
	t.Helper()
	next := 0
	Eventually(t, timeout, what, func() bool {
		frames := w.Frames()
		for ; next < len(frames); next++ {
			if match(frames[next]) {
				found = frames[next]
				return true
			}
		}
		return false
	})
	return found
}
