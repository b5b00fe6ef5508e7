package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/handover"
	"culvert/gateway/state"
	"culvert/geneve"
	"culvert/nat/nattest"
)

// newHandPair is a pair whose rome can be asked to hand over, and has a session with milan.
func newHandPair(t *testing.T) (p *pair, socket string) {
	t.Helper()
	folder := t.TempDir()
	socket = filepath.Join(folder, "rome.sock")
	p = newPair(t, func(rome, _ *config.Config) {
		rome.Control, rome.State, rome.Metrics = socket, folder, "127.0.0.1:0"
	})
	p.there(t, 0)
	return p, socket
}

// there sends datagrams from rome until one has come to milan, and requires that U is as before.
func (p *pair) there(t *testing.T, number uint32) {
	t.Helper()
	p.rome.nodes[0].Send(nattest.IP{Source: "192.0.2.77", Destination: "10.61.1.7",
		Body: nattest.UDP{SourcePort: 4000, DestinationPort: 53, Payload: nattest.Payload(40, number)}}.Bytes())
	expect(t, p.milan.nodes[0], "10.72.0.0", "10.0.1.7")
}

// nextRome begins to take over from rome in this process, by another Gateway.
func (p *pair) nextRome(t *testing.T, socket string, edit func(*config.Config)) (*Gateway, error) {
	t.Helper()
	p.rome.mu.Lock()
	c := *p.rome.config
	p.rome.mu.Unlock()
	if edit != nil {
		edit(&c)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	return takeOver(t.Context(), socket, &c, Budget{}, log, geneve.Options{Listen: p.rome.endpoint.LocalAddr()})
}

// serve runs a gateway that has taken over, until the end of the test.
func serve(t *testing.T, g *Gateway) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("the gateway that has taken over:", err)
		}
	})
}

// TestHandOverLosesNothing has both clusters send all the while: each packet arrives, with the
// ports that it would have had.
func TestHandOverLosesNothing(t *testing.T) {
	p, socket := newHandPair(t)
	const packets = 3000
	ways := []struct {
		from, to   *cluster
		send, seen [2]string
	}{
		{p.rome, p.milan, [2]string{"192.0.2.77", "10.61.1.7"}, [2]string{"10.72.0.0", "10.0.1.7"}},
		{p.milan, p.rome, [2]string{"10.0.1.5", "10.62.1.9"}, [2]string{"10.61.1.5", "10.0.1.9"}},
	}
	var senders sync.WaitGroup
	begin := make(chan struct{})
	for _, w := range ways {
		senders.Go(func() {
			for i := range uint32(packets) {
				if i == packets/10 {
					begin <- struct{}{}
				}
				payload := binary.BigEndian.AppendUint32(nil, i)
				w.from.nodes[0].Send(nattest.IP{Source: w.send[0], Destination: w.send[1],
					Body: nattest.UDP{SourcePort: 4001, DestinationPort: 53, Payload: payload}}.Bytes())
				time.Sleep(200 * time.Microsecond) // the pace, which the sockets hold
			}
		})
	}
	var receivers sync.WaitGroup
	for _, w := range ways {
		receivers.Go(func() {
			came := make(map[uint32]bool)
			for len(came) < packets {
				v, err := nattest.Check(w.to.nodes[0].Receive())
				if err != nil || v.Source.String() != w.seen[0] || v.Destination.String() != w.seen[1] || v.SourcePort != 4001 {
					t.Errorf("got %v:%d > %v, %v", v.Source, v.SourcePort, v.Destination, err)
					return
				}
				n := binary.BigEndian.Uint32(v.Payload)
				if came[n] {
					t.Errorf("packet %d came twice", n)
				}
				came[n] = true
			}
		})
	}
	<-begin
	<-begin
	g, err := p.nextRome(t, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, g)
	senders.Wait()
	receivers.Wait()
	<-p.rome.gone
	if n := g.engine.Stats().Restored; n == 0 {
		t.Error("no connection was handed over")
	}
	if s, err := control.NewClient(socket).Status(t.Context()); err != nil || s.Peer != "milan" {
		t.Error("the control socket:", s, err)
	}
}

// TestHandOverToAnotherConfiguration has the new gateway listen elsewhere.
func TestHandOverToAnotherConfiguration(t *testing.T) {
	p, socket := newHandPair(t)
	other := filepath.Join(t.TempDir(), "other.sock")
	g, err := p.nextRome(t, socket, func(c *config.Config) {
		c.Control, c.Metrics, c.State = other, "", ""
		c.WireGuard.ListenPort = freePort(t)
	})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, g)
	p.there(t, 1)
	if was := p.rome.wg.Port(); g.wg.Port() == was {
		t.Error("the port is the one before,", was)
	}
	<-p.rome.gone
	<-g.taken.over
	if _, err := control.NewClient(other).Status(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the control socket before is still there:", err)
	}
}

// freePort returns a UDP port that was free a moment ago.
func freePort(t *testing.T) uint16 {
	t.Helper()
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return uint16(c.LocalAddr().(*net.UDPAddr).Port)
}

func TestHandOverIsRefused(t *testing.T) {
	p, socket := newHandPair(t)
	for _, tt := range []struct {
		name string
		ask  control.TakeoverOptions
		want string
	}{
		{"another version", control.TakeoverOptions{Protocol: 99, Cluster: "rome", Peer: "milan"}, "by version 1 of the conversation, not 99"},
		{"another peer", control.TakeoverOptions{Protocol: 1, Cluster: "rome", Peer: "oslo"}, "towards milan, not of rome towards oslo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := control.TakeOver(t.Context(), socket, tt.ask)
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	// A configuration that cannot start changes nothing, and one whose peer knows it not neither.
	if _, err := p.nextRome(t, socket, func(c *config.Config) { c.Health = "192.0.2.1:1" }); err == nil || !strings.Contains(err.Error(), "health") {
		t.Error(err)
	}
	p.there(t, 1)
}

// A fakeNext is a new process that does what it must not.
type fakeNext struct {
	*handover.Line
	t *testing.T
}

func (f *fakeNext) want(kinds ...handover.Kind) {
	for _, k := range kinds {
		for {
			is, _, files, err := f.Receive(5 * time.Second)
			for _, file := range files {
				file.Close()
			}
			if err != nil {
				f.t.Errorf("waiting for message %d: %v", k, err)
				return
			}
			if is == k {
				break
			}
		}
	}
}

// TestFaultyNewProcess: whatever the new process does, the old one carries packets again
// within two seconds after it had stopped, if it had.
func TestFaultyNewProcess(t *testing.T) {
	p, socket := newHandPair(t)
	const offer, standing, ready, cut, forwarding = handover.KindOffer, handover.KindStanding, handover.KindReady, handover.KindCut, handover.KindForwarding
	for _, tt := range []struct {
		name string
		do   func(f *fakeNext)
		said string // by the old process
	}{
		{"goes at once", func(f *fakeNext) { f.Close() }, "hand-over failed"},
		{"goes after the offer", func(f *fakeNext) { f.want(offer); f.Close() }, "hand-over failed"},
		{"goes after the records", func(f *fakeNext) { f.want(offer, standing); f.Close() }, "hand-over failed"},
		{"refuses", func(f *fakeNext) { f.want(offer, standing); f.Refuse(errors.New("no room")) }, `refuses: \"no room\"`},
		{"says that it forwards before the cut", func(f *fakeNext) { f.want(offer, standing); f.Send(forwarding, nil, time.Second) }, "message 6 in the place of 4"},
		{"says what is no message", func(f *fakeNext) { f.want(offer, standing); f.Send(77, nil, time.Second) }, "message 77 of 0 bytes"},
		{"says too much", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(ready, make([]byte, handover.MaxBody+1), time.Second)
		}, "message 4 of 1048577 bytes"},
		{"goes at the cut", func(f *fakeNext) { f.want(offer, standing); f.Send(ready, nil, time.Second); f.Close() }, "hand-over failed"},
		{"goes after the cut", func(f *fakeNext) { f.want(offer, standing); f.Send(ready, nil, time.Second); f.want(cut); f.Close() }, "hand-over failed"},
		{"hangs after the cut", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(ready, nil, time.Second)
			f.want(cut)
			<-f.t.Context().Done()
		}, "does not forward in 500ms"},
		{"goes as soon as it forwards", func(f *fakeNext) {
			f.want(offer, standing)
			f.Send(ready, nil, time.Second)
			f.want(cut)
			f.Send(forwarding, nil, time.Second)
			f.Close()
		}, "the new process is gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			said := new(lockedText)
			p.rome.log.Logger.SetOutput(said)
			conn, err := control.TakeOver(t.Context(), socket, control.TakeoverOptions{Protocol: handover.Version, Cluster: "rome", Peer: "milan"})
			if err != nil {
				t.Fatal(err)
			}
			f := &fakeNext{handover.NewLine(conn), t}
			defer f.Close()
			acted := make(chan struct{})
			go func() { defer close(acted); tt.do(f) }()
			if !strings.HasPrefix(tt.name, "hangs") {
				<-acted
			}
			began := time.Now()
			waitFor(t, "the end of the hand-over", func() bool { return !p.rome.handing.Load() })
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the old process went on after %v", took)
			}
			p.there(t, 1)
			p.back(t)
			if !strings.Contains(said.String(), tt.said) {
				t.Errorf("said %s, want %q", said, tt.said)
			}
			if tt.name == "hangs after the cut" {
				if err := f.Send(forwarding, nil, time.Second); err == nil {
					t.Error("the new process can say that it forwards after the old one has gone on")
				}
			}
		})
	}
	// And now in earnest.
	g, err := p.nextRome(t, socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, g)
	p.there(t, 2)
	p.back(t)
}

// back is an answer to there.
func (p *pair) back(t *testing.T) {
	t.Helper()
	p.milan.nodes[0].Send(nattest.IP{Source: "10.0.1.7", Destination: "10.72.0.0",
		Body: nattest.UDP{SourcePort: 53, DestinationPort: 4000, Payload: nattest.Payload(40, 9)}}.Bytes())
	expect(t, p.rome.nodes[0], "10.61.1.7", "192.0.2.77")
}

// lockedText is a log.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// fakeOld serves a control socket as a gateway that does what it must not.
func fakeOld(t *testing.T, talk func(*handover.Line)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "old.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buffer := make([]byte, 4096)
		conn.Read(buffer)
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: culvert-takeover\r\n\r\n")
		talk(handover.NewLine(conn.(*net.UnixConn)))
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return socket
}

// TestFaultyOldProcess: the new one gives up, says why, and leaves nothing open.
func TestFaultyOldProcess(t *testing.T) {
	p, _ := newHandPair(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	good := state.Identity{Cluster: "rome"}
	for _, tt := range []struct {
		name string
		talk func(l *handover.Line)
		want string
	}{
		{"goes at once", func(l *handover.Line) { l.Close() }, "EOF"},
		{"refuses", func(l *handover.Line) { l.Refuse(errors.New("not today")) }, `refuses: "not today"`},
		{"offers what is no offer", func(l *handover.Line) { l.Send(handover.KindOffer, []byte("{"), time.Second) }, "says what it must not"},
		{"says something else", func(l *handover.Line) { l.Send(handover.KindCut, nil, time.Second) }, "message 5 in the place of 1"},
		{"has no identity", func(l *handover.Line) { l.SendJSON(handover.KindOffer, &handover.Offer{}, time.Second) }, "damaged"},
		{"has no relay", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode()}, time.Second)
		}, "no relay"},
		{"gives files for sockets", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode(), Sockets: []handover.Socket{{Name: "relay"}}}, time.Second, int(file.Fd()))
		}, "relay"},
		{"gives more than it names", func(l *handover.Line) {
			l.SendJSON(handover.KindOffer, &handover.Offer{Identity: good.Encode()}, time.Second, int(file.Fd()), int(file.Fd()))
		}, "no relay"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := fakeOld(t, tt.talk)
			before := openFDs(t)
			g, err := p.nextRome(t, socket, nil)
			if g != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			waitFor(t, "no more descriptors than before", func() bool { return openFDs(t) <= before }) // the fake closes its own
		})
	}
	p.there(t, 1)
}

func openFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
