package integration

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

// An echoFlow is a TCP connection whose client sends random blocks; each must come back before it
// sends the next.
type echoFlow struct {
	name   string
	from   *peerHost
	conn   net.Conn
	pause  time.Duration // after each block
	rounds atomic.Int64  // blocks that came back
	stop   atomic.Bool
	ended  chan error
}

const (
	echoPort  = "5202"
	echoBlock = 4 << 10
	// echoTimeout limits the time of a block: a sender that has lost everything during the flood
	// waits as long again.
	echoTimeout = 30 * time.Second
)

// echoFlows opens connections between the pods in both directions, and checks that each works.
func (c *clusters) echoFlows(t *testing.T, eachWay int) (flows []*echoFlow) {
	t.Helper()
	for _, way := range []struct {
		from, to *peerHost
		address  string
	}{{c.romePod, c.milanPod, milanPodAtRome}, {c.milanPod, c.romePod, romePodAtMilan}} {
		serveEcho(way.to)
		for i := range eachWay {
			conn, err := way.from.dial("tcp4", net.JoinHostPort(way.address, echoPort))
			need.NoError(t, err)
			f := &echoFlow{name: fmt.Sprintf("flow %d from %s", i+1, way.from.name), from: way.from, conn: conn,
				ended: make(chan error, 1)}
			flows = append(flows, f)
			seed := uint64(len(flows))
			go func() { f.ended <- f.run(seed) }()
			f.wait(t, 1)
		}
	}
	return flows
}

// serveEcho echoes connections until the end of the test.
func serveEcho(h *peerHost) {
	h.accept(h.t, "tcp4", ":"+echoPort, echo)
}

// run sends blocks until stop, and then expects the end of the stream with nothing before it.
func (f *echoFlow) run(seed uint64) error {
	defer f.conn.Close()
	random := randomBytes(seed)
	sent, got := make([]byte, echoBlock), make([]byte, echoBlock)
	for !f.stop.Load() {
		f.conn.SetDeadline(time.Now().Add(echoTimeout))
		io.ReadFull(random, sent)
		if _, err := f.conn.Write(sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(f.conn, got); err != nil {
			return err
		}
		if !bytes.Equal(got, sent) {
			return fmt.Errorf("block %d came back as another", f.rounds.Load())
		}
		f.rounds.Add(1)
		time.Sleep(f.pause) // the pace of the flow
	}
	if err := f.conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	rest, err := io.ReadAll(f.conn)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes after the last block", len(rest))
	}
	return err
}

// wait waits until n more blocks have come back.
func (f *echoFlow) wait(t *testing.T, n int64) {
	t.Helper()
	want := f.rounds.Load() + n
	eventually(t, f.name, func() error {
		select {
		case err := <-f.ended:
			t.Fatalf("%s: ended after %d blocks: %v", f.name, f.rounds.Load(), err)
		default:
		}
		if f.rounds.Load() < want {
			return errNotYet
		}
		return nil
	})
}

// finish checks that the flow still works, and ends it.
func (f *echoFlow) finish(t *testing.T) {
	t.Helper()
	const blocks = 200
	began := time.Now()
	f.wait(t, 1)
	again := time.Now()
	f.wait(t, blocks)
	t.Logf("%s: goes on after %v, then %d blocks in %v", f.name, again.Sub(began).Round(time.Millisecond), blocks,
		time.Since(again).Round(time.Millisecond))
	f.stop.Store(true)
	if err := <-f.ended; err != nil {
		t.Errorf("%s: %v", f.name, err)
	}
}
