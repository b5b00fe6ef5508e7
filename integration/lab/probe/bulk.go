package probe

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
)

const (
	BulkBuffer   = 128 << 10 // bytes of one write or read
	requestBytes = 32        // of a request and of its answer
	Dialers      = 16        // connecting threads, enough to load two CPUs
)

// bulk is a set of TCP connections that send as fast as they can.
type bulk struct {
	Received atomic.Int64 // payload bytes, all connections
	Pause    atomic.Int64 // the longest time between two reads of one connection, in nanoseconds
	stopping atomic.Bool
	running  sync.WaitGroup
	sockets  []*netns.Socket
	failed   chan error
}

// StartBulk opens up connections that send to e.to, and down connections that receive from it.
func (e *Ends) StartBulk(up, down int) (*bulk, error) {
	b := &bulk{failed: make(chan error, 2*(up+down))}
	for i := range up + down {
		near, far, err := e.Connect()
		if err != nil {
			b.Stop()
			return nil, err
		}
		b.sockets = append(b.sockets, near, far)
		if i < up {
			b.stream(near, far)
		} else {
			b.stream(far, near)
		}
	}
	return b, nil
}

func (b *bulk) stream(from, to *netns.Socket) {
	b.running.Go(func() {
		buffer := make([]byte, BulkBuffer)
		for {
			if _, err := from.Write(buffer); err != nil {
				b.fail(err)
				return
			}
		}
	})
	b.running.Go(func() {
		buffer, last := make([]byte, BulkBuffer), time.Now()
		for {
			n, err := to.Read(buffer)
			if err != nil {
				b.fail(err)
				return
			}
			b.Received.Add(int64(n))
			now := time.Now()
			for took, longest := int64(now.Sub(last)), b.Pause.Load(); took > longest &&
				!b.Pause.CompareAndSwap(longest, took); longest = b.Pause.Load() {
			}
			last = now
		}
	})
}

func (b *bulk) fail(err error) {
	if !b.stopping.Load() {
		b.failed <- err
	}
}

// Stop ends the streams; it returns the error that ended one of them earlier.
func (b *bulk) Stop() error {
	b.stopping.Store(true)
	for _, s := range b.sockets {
		s.Shutdown()
	}
	b.running.Wait()
	for _, s := range b.sockets {
		s.Close()
	}
	select {
	case err := <-b.failed:
		return fmt.Errorf("TCP stream: %w", err)
	default:
		return nil
	}
}

// Connect opens a TCP connection and returns both ends.
func (e *Ends) Connect() (near, far *netns.Socket, err error) {
	listener, err := netns.ListenTCP(e.To, e.Port)
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	near, err = netns.NewSocket(e.From, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := near.Connect(netip.AddrPortFrom(e.Target, listener.Port)); err != nil {
		near.Close()
		return nil, nil, err
	}
	far, err = listener.Accept()
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	return near, far, nil
}
