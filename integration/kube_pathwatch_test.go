package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

// A pathWatch sends datagrams to a host that returns them, and measures for how long no answer
// arrives. TCP streams cannot measure that: they repeat lost segments after pauses that double (RFC
// 6298, Section 5.5), so a stream may pause for twice as long as the path.
type pathWatch struct {
	longest, last atomic.Int64 // longest time between two answers, and time of the last answer, in nanoseconds
}

// watchPace is the time between two datagrams.
const watchPace = 10 * time.Millisecond

// watchPath has a client send datagrams to the address at, which reach a server at its own address.
func watchPath(t *testing.T, server *peerHost, own string, client *peerHost, at string) *pathWatch {
	t.Helper()
	listener, err := server.listenPacket("udp4", own)
	need.NoError(t, err)
	conn, err := client.dial("udp4", at)
	need.NoError(t, err)
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		listener.Close()
		conn.Close()
		tasks.Wait()
	})
	tasks.Go(func() {
		for b := make([]byte, 1); ; {
			n, peer, err := listener.ReadFrom(b)
			if err != nil {
				return
			}
			listener.WriteTo(b[:n], peer)
		}
	})
	tasks.Go(func() {
		for tick := time.NewTicker(watchPace); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				conn.Write([]byte{0}) // an ICMP error is a lost datagram
			}
		}
	})
	w := &pathWatch{}
	begun := time.Now()
	tasks.Go(func() {
		for b := make([]byte, 1); ctx.Err() == nil; {
			if _, err := conn.Read(b); err != nil {
				continue
			}
			now := int64(time.Since(begun))
			w.longest.Store(max(w.longest.Load(), now-w.last.Swap(now)))
		}
	})
	return w
}

// pause waits for the next answer, and returns the longest pause since it was called last.
func (w *pathWatch) pause(t *testing.T, when string) time.Duration {
	t.Helper()
	before := w.last.Load()
	await(t, when+": datagrams pass", func() bool { return w.last.Load() != before })
	return time.Duration(w.longest.Swap(0))
}
