package wg

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"culvert/gateway/wgkey"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

func newTestBind() *bind {
	return newBind(newWindow(), newWindow(), newAdmission(wgkey.Key{1}))
}

// bindPair returns two open binds, the IPv4 receive function of the second, and its endpoint as the
// first sees it.
func bindPair(t testing.TB) (a, b *bind, receive conn.ReceiveFunc, to conn.Endpoint) {
	t.Helper()
	a, b = newTestBind(), newTestBind()
	if _, _, err := a.Open(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	fns, port, err := b.Open(0)
	need.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	to, err = a.ParseEndpoint(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
	need.NoError(t, err)
	return a, b, fns[0], to
}

// newData returns a data message of size bytes, more than 32.
func newData(size int) []byte {
	m := make([]byte, size)
	m[0] = device.MessageTransportType
	return m
}

// batch holds a receiver's buffers.
type batch struct {
	packets [][]byte
	sizes   []int
	eps     []conn.Endpoint
}

func newBatch(n int) *batch {
	b := &batch{make([][]byte, n), make([]int, n), make([]conn.Endpoint, n)}
	for i := range b.packets {
		b.packets[i] = make([]byte, 65535)
	}
	return b
}

// TestBindKeepsOrderAndSizes sends batches of mixed sizes, which the bind groups into trains, and
// reads them in batches of other sizes.
func TestBindKeepsOrderAndSizes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a, _, receive, to := bindPair(t)
	for _, size := range []int{1, 7, BatchSize} {
		got := newBatch(size)
		for range 20 {
			var sent [][]byte
			common := 33 + r.IntN(1500)
			for range 1 + r.IntN(BatchSize) {
				n := common
				if r.IntN(8) == 0 {
					n = 33 + r.IntN(4000)
				}
				p := newData(n)
				for i := 4; i < n; i++ {
					p[i] = byte(r.Uint32())
				}
				sent = append(sent, p)
			}
			need.NoError(t, a.Send(sent, to))
			for i := 0; i < len(sent); {
				n, err := receive(got.packets, got.sizes, got.eps)
				need.NoError(t, err)
				for k := range n {
					if !bytes.Equal(got.packets[k][:got.sizes[k]], sent[i]) {
						t.Fatalf("datagram %d of %d: got %d bytes, want %d or other content", i, len(sent),
							got.sizes[k], len(sent[i]))
					}
					i++
				}
			}
		}
	}
}

func TestBindEndpoints(t *testing.T) {
	a, b, receive, to := bindPair(t)
	got := newBatch(4)
	var seen conn.Endpoint
	for range 3 {
		need.NoError(t, a.Send([][]byte{newData(40)}, to))
		if _, err := receive(got.packets, got.sizes, got.eps); err != nil {
			t.Fatal(err)
		}
		if seen != nil && seen != got.eps[0] {
			t.Error("the same source got another Endpoint object")
		}
		seen = got.eps[0]
	}
	if seen.DstIP() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		t.Errorf("endpoint %s", seen.DstToString())
	}
	if b.BatchSize() < 1 || len(seen.DstToBytes()) != 6 {
		t.Errorf("batch size %d, DstToBytes %x", b.BatchSize(), seen.DstToBytes())
	}
}

// TestBindClose: Close ends receive with net.ErrClosed, and the bind opens again.
func TestBindClose(t *testing.T) {
	b := newTestBind()
	fns, _, err := b.Open(0)
	need.NoError(t, err)
	if _, _, err := b.Open(0); !errors.Is(err, conn.ErrBindAlreadyOpen) {
		t.Errorf("second Open: %v", err)
	}
	done := make(chan error, len(fns))
	for _, receive := range fns {
		go func() {
			got := newBatch(1)
			_, err := receive(got.packets, got.sizes, got.eps)
			done <- err
		}()
	}
	need.NoError(t, b.Close())
	for range fns {
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("receive: %v", err)
		}
	}
	if _, _, err := b.Open(0); err != nil {
		t.Errorf("Open after Close: %v", err)
	}
	b.Close()
}

// TestBindUntaken: data messages that wireguard-go leaves in their buffers have been discarded,
// others have not. The next call shows it.
func TestBindUntaken(t *testing.T) {
	a, b, receive, to := bindPair(t)
	got := newBatch(4)
	keepalive := make([]byte, device.MessageKeepaliveSize)
	keepalive[0] = device.MessageTransportType
	exchange := func(messages ...[]byte) {
		t.Helper()
		need.NoError(t, a.Send(messages, to))
		for left := len(messages); left > 0; {
			n, err := receive(got.packets, got.sizes, got.eps)
			need.NoError(t, err)
			left -= n
		}
	}
	exchange(newData(50), newData(50), keepalive)
	if inside := b.in.handed.Load(); inside != 2 {
		t.Fatalf("%d data messages given, want 2", inside)
	}
	got.packets[1] = make([]byte, 65535)
	exchange(newData(50))
	if inside, gone := b.in.handed.Load(), b.in.gone.Load(); inside != 2 || gone != 1 {
		t.Errorf("%d given and %d gone, want 2 and 1", inside, gone)
	}
}

// TestBindAllocations: neither direction allocates per batch once its buffers have grown.
func TestBindAllocations(t *testing.T) {
	a, _, receive, to := bindPair(t)
	got := newBatch(BatchSize)
	var sent [][]byte
	for range 40 {
		sent = append(sent, newData(1372))
	}
	sent = append(sent, newData(100)) // ends the train
	exchange := func() {
		need.NoError(t, a.Send(sent, to))
		for n := 0; n < len(sent); {
			k, err := receive(got.packets, got.sizes, got.eps)
			need.NoError(t, err)
			n += k
		}
	}
	exchange()
	if n := testing.AllocsPerRun(50, exchange); n != 0 {
		t.Errorf("%v allocations per batch of %d", n, len(sent))
	}
}

func TestDataMessages(t *testing.T) {
	data, keepalive, handshake := newData(64), make([]byte, 32), make([]byte, 148)
	keepalive[0], handshake[0] = 4, 1
	if n := dataMessages([][]byte{data, keepalive, handshake, data}); n != 2 {
		t.Errorf("%d data messages, want 2", n)
	}
}

// TestAnswersFromTheAddressAsked: messages to an endpoint leave from the address of ours at which
// it was heard, until wireguard-go or the kernel refuses that.
func TestAnswersFromTheAddressAsked(t *testing.T) {
	a, b, receive, to := bindPair(t)
	asked := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), b.port())
	hear := func() *endpoint {
		t.Helper()
		need.NoError(t, a.Send([][]byte{newData(64)}, &endpoint{addr: asked}))
		in := newBatch(1)
		if n, err := receive(in.packets, in.sizes, in.eps); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return in.eps[0].(*endpoint)
	}
	heard := hear()
	if heard.SrcIP() != asked.Addr() || hear() != heard {
		t.Fatalf("heard at %v, want one endpoint at %v", heard.SrcIP(), asked)
	}
	peer, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.DstIP(), 0)))
	need.NoError(t, err)
	defer peer.Close()
	for _, test := range []struct{ from, want, next netip.Addr }{
		{asked.Addr(), asked.Addr(), asked.Addr()},
		{netip.Addr{}, to.DstIP(), netip.Addr{}},
		{netip.MustParseAddr("203.0.113.1"), to.DstIP(), netip.Addr{}}, // not ours
	} {
		ep := &endpoint{addr: peer.LocalAddr().(*net.UDPAddr).AddrPort(), local: test.from}
		need.NoError(t, b.Send([][]byte{newData(64)}, ep))
		_, source, err := peer.ReadFromUDPAddrPort(make([]byte, 65535))
		need.NoError(t, err)
		if source.Addr().Unmap() != test.want || ep.SrcIP() != test.next {
			t.Errorf("from %v: came from %v, next from %v; want %v, %v", test.from, source, ep.SrcIP(),
				test.want, test.next)
		}
	}
	heard.ClearSrc()
	if again := hear(); heard.SrcIP().IsValid() || again.SrcIP() != asked.Addr() {
		t.Errorf("from %v after ClearSrc, %v when heard again", heard.SrcIP(), again.SrcIP())
	}
}

// TestAddressAskedIsKept: a recreated peer, and one whose messages another process passes on, are
// answered from the same address as before.
func TestAddressAskedIsKept(t *testing.T) {
	a, b, receive, to := bindPair(t)
	d := &Device{bind: b}
	asked := netip.MustParseAddr("127.0.0.2")
	at := netip.AddrPortFrom(to.DstIP(), a.port())
	d.Expect(at, asked)
	anew, err := b.ParseEndpoint(at.String())
	if err != nil || anew.SrcIP() != asked || d.Local() != asked {
		t.Errorf("answered from %v, %v, %v; want %v", anew.SrcIP(), d.Local(), err, asked)
	}
	if other, err := b.ParseEndpoint("127.0.0.3:9"); err != nil || other.SrcIP().IsValid() {
		t.Errorf("another one is answered from %v, %v", other.SrcIP(), err)
	}
	leg := (*b.current.Load())[0]
	leg.socket = untold{leg.socket}
	need.NoError(t, a.Send([][]byte{newData(64)}, to))
	in := newBatch(1)
	if n, err := receive(in.packets, in.sizes, in.eps); n != 1 || err != nil ||
		in.eps[0].DstToString() != at.String() || in.eps[0].SrcIP() != asked {
		t.Errorf("%d, %v: %v is answered from %v, want %v from %v", n, err, in.eps[0].DstToString(),
			in.eps[0].SrcIP(), at, asked)
	}
}

// untold is a socket that does not say to which address messages came.
type untold struct{ udp.Conn }

func (u untold) Receive(messages []udp.Message) (int, error) {
	n, err := u.Conn.Receive(messages)
	for i := range messages[:n] {
		messages[i].Destination = netip.Addr{}
	}
	return n, err
}
