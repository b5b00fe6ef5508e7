package handover

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"culvert/geneve/udp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeSocket delivers the messages that it is given and keeps those that are sent.
type fakeSocket struct {
	udp.Conn
	come chan udp.Message
	sent []udp.Train
}

func (s *fakeSocket) Receive(messages []udp.Message) (int, error) {
	m, ok := <-s.come
	if !ok {
		return 0, net.ErrClosed
	}
	if m.Data == nil {
		return 0, udp.ErrWoken
	}
	messages[0].Data = messages[0].Buffer[:copy(messages[0].Buffer, m.Data)]
	messages[0].SegmentSize, messages[0].Source = m.SegmentSize, m.Source
	return 1, nil
}

func (s *fakeSocket) Wake() {
	select {
	case s.come <- udp.Message{}:
	default:
	}
}
func (s *fakeSocket) Close() error          { return nil }
func (s *fakeSocket) NewSender() udp.Sender { return s }
func (s *fakeSocket) Send(trains []udp.Train) (int, error) {
	s.sent = append(s.sent, trains...)
	return len(trains), nil
}

func newFake() *fakeSocket { return &fakeSocket{come: make(chan udp.Message, 16)} }

// relays returns both ends of one.
func relays(t *testing.T) (a, b *Relay) {
	t.Helper()
	pair := socketPair(t, unix.SOCK_SEQPACKET)
	a, b = NewRelay(pair[0]), NewRelay(pair[1])
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	return a, b
}

// wireguard makes a message of a kind and an index, size bytes long.
func wireguard(kind, index uint32, size int) []byte {
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[indexAt:], index)
	return b
}

var peer = netip.MustParseAddrPort("192.0.2.7:51840")

func buffers() []udp.Message { return []udp.Message{{Buffer: make([]byte, udp.BufferSize)}} }

// TestLeadSortsTrains: of a train that the kernel has merged, each message goes to the process that
// has its session.
func TestLeadSortsTrains(t *testing.T) {
	ours, theirs := relays(t)
	socket := newFake()
	c := NewConn(socket)
	c.Greet(ours, func() {})
	c.NewSender().Send([]udp.Train{{Destination: peer, Parts: [][]byte{wireguard(initiation, 7, 148)}}})
	if len(socket.sent) != 1 {
		t.Fatalf("%d initiations were sent", len(socket.sent))
	}
	c.Lead(ours)
	<-socket.come // of Wake, twice
	<-socket.come
	train := append(append(wireguard(data, 7, 100), wireguard(data, 8, 100)...), wireguard(data, 7, 60)...)
	socket.come <- udp.Message{Data: train, SegmentSize: 100, Source: peer}
	messages := buffers()
	n, err := c.Receive(messages)
	if n != 1 || err != nil || len(messages[0].Data) != 160 || indexOf(messages[0].Data) != 7 ||
		indexOf(messages[0].Data[100:]) != 7 {
		t.Fatalf("%d messages, %v: % x", n, err, messages[0].Data)
	}
	passed := <-theirs.inbox
	if passed.source != peer || len(passed.data) != 100 || indexOf(passed.data) != 8 {
		t.Errorf("passed on: %v, % x", passed.source, passed.data)
	}

	// A train that belongs entirely to the other process leaves nothing here.
	socket.come <- udp.Message{Data: wireguard(data, 9, 100), Source: peer}
	if n, err := c.Receive(messages); n != 0 || !errors.Is(err, udp.ErrWoken) {
		t.Errorf("%d messages, %v", n, err)
	}
	if passed := <-theirs.inbox; indexOf(passed.data) != 9 {
		t.Errorf("passed on: % x", passed.data)
	}
	// Answers, and packets that are no messages, stay with the receiver.
	for _, b := range [][]byte{wireguard(answer, 9, 92), {1, 2, 3}} {
		socket.come <- udp.Message{Data: b, Source: peer}
		if n, err := c.Receive(messages); n != 1 || err != nil || len(messages[0].Data) != len(b) {
			t.Errorf("%d messages, %v", n, err)
		}
	}
}

// TestGreetSendsNoData: before the cut, nothing is sent that the peer would take for a new session,
// and the first attempt shows that there is one.
func TestGreetSendsNoData(t *testing.T) {
	ours, theirs := relays(t)
	socket := newFake()
	c := NewConn(socket)
	sessions := 0
	c.Greet(ours, func() { sessions++ })
	sent, err := c.NewSender().Send([]udp.Train{{Destination: peer, SegmentSize: 32,
		Parts: [][]byte{wireguard(data, 5, 32), wireguard(data, 5, 32)}}})
	if sent != 2 || err != nil || len(socket.sent) != 0 || sessions != 1 {
		t.Errorf("%d sent (%v), %d by the socket, %d sessions", sent, err, len(socket.sent), sessions)
	}
	theirs.pass(peer, wireguard(answer, 7, 92))
	messages := buffers()
	if n, err := c.Receive(messages); n != 1 || err != nil || messages[0].Source != peer ||
		len(messages[0].Data) != 92 {
		t.Errorf("%d messages, %v", n, err)
	}
}

// TestRetireSendsData: after the cut, the old process still sends what it has encrypted, and starts
// no session.
func TestRetireSendsData(t *testing.T) {
	ours, _ := relays(t)
	socket := newFake()
	c := NewConn(socket)
	c.Retire(ours)
	sent, err := c.NewSender().Send([]udp.Train{
		{Destination: peer, Parts: [][]byte{wireguard(data, 5, 32)}},
		{Destination: peer, Parts: [][]byte{wireguard(initiation, 7, 148)}},
		{Destination: peer, Parts: [][]byte{wireguard(answer, 7, 92)}},
	})
	if sent != 3 || err != nil || len(socket.sent) != 1 || kindOf(socket.sent[0].Parts[0]) != data {
		t.Errorf("%d sent (%v), by the socket %v", sent, err, socket.sent)
	}
}

// TestSpoke: the other process learns when this one last sent a handshake message, also one that
// was still on its way when this one stopped.
func TestSpoke(t *testing.T) {
	_, theirs := relays(t)
	c := NewConn(newFake())
	send := func(b []byte) (spoke int64) {
		c.NewSender().Send([]udp.Train{{Destination: peer, Parts: [][]byte{b}}})
		return theirs.Spoke()
	}
	c.Lend(theirs)
	if at := send(wireguard(data, 1, 32)); at != 0 {
		t.Errorf("data: %d", at)
	}
	first := send(wireguard(initiation, 7, 148))
	if first == 0 {
		t.Error("an initiation does not count")
	}
	c.Stop(theirs)
	if at := send(wireguard(answer, 8, 92)); at <= first {
		t.Errorf("an answer after the stop: %d, before it %d", at, first)
	}
}

// TestStopWaitsForWhoReceives: a Conn is parked only when everything received before has been
// processed.
func TestStopWaitsForWhoReceives(t *testing.T) {
	socket := newFake()
	c := NewConn(socket)
	parked := c.Stop(nil)
	select {
	case <-parked:
		t.Fatal("parked, and nobody has come back")
	default:
	}
	<-socket.come // of Wake
	ended := make(chan error)
	go func() {
		_, err := c.Receive(buffers())
		ended <- err
	}()
	<-parked
	c.Own()
	if err := <-ended; !errors.Is(err, udp.ErrWoken) {
		t.Errorf("after the stop: %v", err)
	}
	c.Silence(nil)
	go func() {
		_, err := c.Receive(buffers())
		ended <- err
	}()
	c.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestLastDecides: a message that arrives in time counts even if nobody has read it yet; sending a
// later one fails.
func TestLastDecides(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(l *Line)
		want string // of the error; "" = it came
	}{
		{"in time", func(l *Line) { l.Send(KindForwarding, nil, time.Second) }, ""},
		{"never", func(*Line) {}, "i/o timeout"},
		{"gone", func(l *Line) { l.Close() }, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines := newLines(t, unix.SOCK_STREAM)
			old, next := lines[0], lines[1]
			tt.send(next)
			k, err := old.Last(20 * time.Millisecond)
			if tt.want == "" && (k != KindForwarding || err != nil) || tt.want != "" &&
				(err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("message %d, %v", k, err)
			}
			if err := next.Send(KindForwarding, nil, time.Second); tt.name == "never" &&
				!errors.Is(err, syscall.EPIPE) {
				t.Errorf("a message that comes too late: %v", err)
			}
		})
	}
}

// TestNewestSessionsAreKnown: however many handshakes were begun, this process gets the data of the
// newest sessions.
func TestNewestSessionsAreKnown(t *testing.T) {
	ours, theirs := relays(t)
	socket := newFake()
	c := NewConn(socket)
	c.Lead(ours)
	sender := c.NewSender()
	const last = maxOwn + 1
	for index := range uint32(last) {
		if _, err := sender.Send([]udp.Train{{Destination: peer,
			Parts: [][]byte{wireguard(initiation, index, 148)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for index := range uint32(last) {
		m := udp.Message{Data: wireguard(data, index, 32), Source: peer}
		if own := c.keepOwn(ours, &m); own != (index > 0) {
			t.Errorf("session %d of %d is this process's: %t", index, last, own)
		}
	}
	if m := <-theirs.inbox; indexOf(m.data) != 0 {
		t.Errorf("of session %d, data was passed back", indexOf(m.data))
	}
}
