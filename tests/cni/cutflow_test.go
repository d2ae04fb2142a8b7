// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// flow is a connection between two stations, on which one end sends, or both.
type flow struct {
	flowKind
	name     string
	number   int // identifies it in every packet: see flowPort
	from, to *station
	at       netip.AddrPort // to which the client sends
	source   string         // of the Service through which it goes; empty: none
	cut      bool           // the policies of the test forbid it
	muted    bool           // sends nothing now; changed while no flow sends

	end    [2]func(payload []byte) error // sends from the client, from the server; nil: this end is silent
	tcp    [2]*net.TCPConn
	raw    *rawEnds
	sent   [2]uint64
	errors [2]error // the last one
}

// flowKind is what a flow sends, and whether each end sends.
type flowKind struct {
	name          string
	protocol      uint8
	client, sends bool // the client sends; the server sends
}

var flowKinds = []flowKind{
	{"TCP", testpkt.ProtoTCP, true, true},
	{"UDP", testpkt.ProtoUDP, true, true},
	{"UDP, silent server", testpkt.ProtoUDP, true, false},
	{"UDP, silent client", testpkt.ProtoUDP, false, true},
	{"SCTP", testpkt.ProtoSCTP, true, true},
	{"echo", testpkt.ProtoICMP, true, false}, // the kernel of the server answers
}

// flowPort is the server's port of the first flow, or its ICMP identifier. Flows have different ones.
const flowPort = 20000

func (f *flow) port() uint16 { return uint16(flowPort + f.number) }

func (f *flow) isEcho() bool { return f.protocol == testpkt.ProtoICMP }

// clientPort is the client's port with SCTP: the kernel chooses the others.
func (f *flow) clientPort() uint16 { return uint16(clientPorts + f.number) }

func (f *flow) String() string { return f.name }

// payload is the number of the packet in its direction, and when it was sent.
const payloadBytes = 24

var payloadMagic = [8]byte{'l', 'l', 'c', 'u', 't', '0', '0', '1'}

func newPayload(n uint64) []byte {
	b := binary.BigEndian.AppendUint64(payloadMagic[:8:8], n)
	return binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixNano()))
}

// rawEnds are the raw sockets of a client and a server.
type rawEnds struct{ client, server net.PacketConn }

// tick sends one packet from each end that sends.
func (f *flow) tick() {
	for i, send := range f.end {
		if send == nil || f.muted {
			continue
		}
		if err := send(newPayload(f.sent[i])); err != nil {
			f.errors[i] = err
			if f.protocol == testpkt.ProtoTCP || !errors.Is(err, unix.ECONNREFUSED) {
				continue // was not sent
			}
		}
		f.sent[i]++
	}
}

// arrivesAt reports whether packets of a direction arrive: 0 at the server, 1 at the client.
func (f *flow) arrivesAt(direction int) bool {
	return !f.muted && (f.end[direction] != nil || f.isEcho())
}

// open opens the flow, whose end has a raw socket for the protocol if it needs one.
func (f *flow) open(t *testing.T) {
	t.Helper()
	var err error
	switch f.protocol {
	case testpkt.ProtoTCP:
		err = f.openTCP(t)
	case testpkt.ProtoUDP:
		err = f.openUDP(t)
	case testpkt.ProtoSCTP:
		err = f.openSCTP()
	default:
		f.end[0] = func(payload []byte) error {
			b := testpkt.Build(testpkt.ICMP{Type: f.echoRequest(), ID: f.port(), Seq: uint16(f.sent[0])}, testpkt.Payload(payload))
			_, err := f.raw.client.WriteTo(b, &net.IPAddr{IP: f.at.Addr().AsSlice()})
			return err
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", f, err)
	}
}

func (f *flow) echoRequest() byte {
	if f.at.Addr().Is4() {
		return testpkt.EchoRequest
	}
	return testpkt.V6EchoRequest
}

func (f *flow) family() int {
	if f.at.Addr().Is4() {
		return 0
	}
	return 1
}

func (f *flow) local() string { return netip.AddrPortFrom(f.from.addr[f.family()], 0).String() }

func (f *flow) openTCP(t *testing.T) error {
	l := f.to.Listen(t, netip.AddrPortFrom(f.to.addr[f.family()], f.port()).String())
	defer l.Close() // no longer needed
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			c = nil
		}
		accepted <- c
	}()
	client, err := f.from.Dial("tcp", f.local(), f.at.String(), 5*time.Second)
	if err != nil {
		return err
	}
	server := <-accepted
	if server == nil {
		return errors.New("not accepted")
	}
	for i, c := range []net.Conn{client, server} {
		t.Cleanup(func() { c.Close() })
		go func() { _, _ = io.Copy(io.Discard, c) }()
		f.tcp[i] = c.(*net.TCPConn)
		f.end[i] = func(payload []byte) error {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // cannot fail
			_, err := c.Write(payload)
			return err
		}
	}
	return nil
}

func (f *flow) openUDP(t *testing.T) error {
	server := f.to.ListenUDP(t, netip.AddrPortFrom(f.to.addr[f.family()], f.port()).String())
	client, err := f.from.Dial("udp", f.local(), f.at.String(), time.Second)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = errors.Join(client.Close(), server.Close()) }) // end of the test
	b := make([]byte, 100)
	var seen netip.AddrPort
	for try := 0; ; try++ { // the first datagram may be lost during neighbour resolution
		if _, err = client.Write([]byte("open")); err != nil {
			return err
		}
		_ = server.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // cannot fail
		if _, seen, err = server.ReadFromUDPAddrPort(b); err == nil || try == 10 {
			break
		}
	}
	if err != nil {
		return err
	}
	if _, err := server.WriteToUDPAddrPort([]byte("opened"), seen); err != nil {
		return err
	}
	_ = client.SetReadDeadline(time.Now().Add(time.Second)) // cannot fail
	if _, err := client.Read(b); err != nil {
		return err
	}
	if _, err := client.Write([]byte("confirmed")); err != nil {
		return err
	}
	if f.client {
		f.end[0] = func(payload []byte) error { _, err := client.Write(payload); return err }
	}
	if f.sends {
		f.end[1] = func(payload []byte) error { _, err := server.WriteToUDPAddrPort(payload, seen); return err }
	}
	return nil
}

// openSCTP sends the handshake, and expects each packet at the other end.
func (f *flow) openSCTP() error {
	there, back := net.Addr(&net.IPAddr{IP: f.at.Addr().AsSlice()}), net.Addr(nil)
	seen := uint16(0) // the client's port, as the server sees it
	forth := func(tag uint32, kind byte, value []byte) []byte {
		return sctpPacket(f.clientPort(), f.port(), tag, kind, value)
	}
	reply := func(tag uint32, kind byte, value []byte) []byte {
		return sctpPacket(f.port(), seen, tag, kind, value)
	}
	for _, step := range []struct {
		request, answer byte
		tag             uint32
		value           [2][]byte
	}{
		{chunkInit, chunkInitAck, 0, [2][]byte{sctpInit(clientTag), sctpInit(serverTag)}},
		{chunkCookieEcho, chunkCookieAck, serverTag, [2][]byte{[]byte("cookie"), nil}},
	} {
		from, got, err := f.carry(f.raw.client, f.raw.server, there, forth(step.tag, step.request, step.value[0]), f.port())
		if err != nil {
			return err
		}
		back, seen = from, binary.BigEndian.Uint16(got)
		if _, _, err := f.carry(f.raw.server, f.raw.client, back, reply(clientTag, step.answer, step.value[1]), f.clientPort()); err != nil {
			return err
		}
	}
	data := func(payload []byte) []byte { return append(make([]byte, 12), payload...) }
	f.end[0] = func(payload []byte) error {
		_, err := f.raw.client.WriteTo(forth(serverTag, chunkData, data(payload)), there)
		return err
	}
	f.end[1] = func(payload []byte) error {
		_, err := f.raw.server.WriteTo(reply(clientTag, chunkData, data(payload)), back)
		return err
	}
	return nil
}

// carry sends a packet until it arrives at a port; it returns its source, and the packet that arrived.
func (f *flow) carry(from, to net.PacketConn, dst net.Addr, packet []byte, port uint16) (net.Addr, []byte, error) {
	b := make([]byte, 2048)
	for range 10 {
		if _, err := from.WriteTo(packet, dst); err != nil {
			return nil, nil, err
		}
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			_ = to.SetReadDeadline(end) // cannot fail
			n, source, err := to.ReadFrom(b)
			if err == nil && n >= 13 && binary.BigEndian.Uint16(b[2:]) == port && b[12] == packet[12] {
				return source, b[:n], nil
			}
		}
	}
	return nil, nil, fmt.Errorf("chunk %d does not arrive", packet[12])
}

// arrival is a packet of a flow that has arrived at the end to which it was sent.
type arrival struct {
	number uint64    // of the packet; valid unless it is of TCP
	sent   time.Time // likewise
}

// witness sees the packets that arrive on a device, and which of them belong to flows. It reads them
// when it is asked: so a packet that it has not read has arrived after the previous question.
type witness struct {
	fd    int
	flows map[int]*flow
	b     []byte
}

func newWitness(t *testing.T, s *testnet.NS, device string) *witness {
	t.Helper()
	w := &witness{flows: map[int]*flow{}, b: make([]byte, 1<<16)}
	s.Do(t, func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		const all = uint16(unix.ETH_P_ALL&0xff)<<8 | uint16(unix.ETH_P_ALL>>8)
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index})
	})
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// look returns the packets that have arrived since the last call, by the number of their flow and
// their direction.
func (w *witness) look(t *testing.T) map[[2]int][]arrival {
	t.Helper()
	all := map[[2]int][]arrival{}
	for {
		n, from, err := unix.Recvfrom(w.fd, w.b, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatalf("witness: %v", err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if key, a, ok := w.parse(w.b[:n]); ok {
			all[key] = append(all[key], a)
		}
	}
	if stats, err := unix.GetsockoptTpacketStats(w.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
		t.Fatalf("witness: %+v, %v", stats, err)
	}
	return all
}

// parse finds the flow and the direction of a frame.
func (w *witness) parse(frame []byte) (key [2]int, a arrival, ok bool) {
	if len(frame) < 14+20 {
		return key, a, false
	}
	ip, protocol, l4 := frame[14:], byte(0), []byte(nil)
	switch {
	case frame[12] == 0x08 && frame[13] == 0:
		protocol, l4 = ip[9], ip[min(len(ip), int(ip[0]&15)*4):]
	case frame[12] == 0x86 && frame[13] == 0xdd && len(ip) >= 40:
		protocol, l4 = ip[6], ip[40:]
	default:
		return key, a, false
	}
	if len(l4) < 8 {
		return key, a, false
	}
	body := 0
	source, destination := int(binary.BigEndian.Uint16(l4)), int(binary.BigEndian.Uint16(l4[2:]))
	switch protocol {
	case testpkt.ProtoUDP:
		body = 8
	case testpkt.ProtoSCTP:
		body = 12 + 4 + 12
	case testpkt.ProtoTCP:
	case testpkt.ProtoICMP, testpkt.ProtoICMPv6:
		body = 8
		id := int(binary.BigEndian.Uint16(l4[4:]))
		switch l4[0] {
		case testpkt.EchoRequest, testpkt.V6EchoRequest:
			source, destination = 0, id
		case testpkt.EchoReply, testpkt.V6EchoReply:
			source, destination = id, 0
		default:
			return key, a, false
		}
	}
	f := w.flows[destination-flowPort]
	key = [2]int{destination - flowPort, 0}
	if f == nil {
		f, key = w.flows[source-flowPort], [2]int{source - flowPort, 1}
	}
	if f == nil {
		return key, a, false
	}
	if f.protocol == testpkt.ProtoTCP {
		return key, a, true
	}
	if len(l4) < body+payloadBytes || [8]byte(l4[body:]) != payloadMagic {
		return key, a, false
	}
	a.number = binary.BigEndian.Uint64(l4[body+8:])
	a.sent = time.Unix(0, int64(binary.BigEndian.Uint64(l4[body+16:])))
	return key, a, true
}

// traffic sends on all flows.
type traffic struct {
	flows []*flow
	mu    sync.Mutex // held while packets are sent
	stop  chan struct{}
	done  chan struct{}
}

const flowPause = 20 * time.Millisecond

// startTraffic begins to send on each flow every flowPause.
func startTraffic(t *testing.T, flows []*flow) *traffic {
	tr := &traffic{flows: flows, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(tr.done)
		next := time.NewTicker(flowPause)
		defer next.Stop()
		for {
			select {
			case <-tr.stop:
				return
			case <-next.C:
			}
			for _, f := range flows {
				tr.mu.Lock()
				f.tick()
				tr.mu.Unlock()
			}
		}
	}()
	t.Cleanup(tr.end)
	return tr
}

// end stops sending; it may be called twice.
func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	<-tr.done
}

// retransmitted returns how many segments an end of a TCP connection has sent again.
func retransmitted(c *net.TCPConn) (n uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctl := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Total_retrans
		}
	})
	return n, errors.Join(ctl, err)
}
