package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

const (
	bulkBuffer   = 128 << 10 // bytes of one write or read
	requestBytes = 32        // of a request and of its answer
	dialers      = 16        // connecting threads, enough to load two CPUs
)

// bulk is a set of TCP connections that send as fast as they can.
type bulk struct {
	received atomic.Int64 // payload bytes, all connections
	pause    atomic.Int64 // the longest time between two reads of one connection, in nanoseconds
	stopping atomic.Bool
	running  sync.WaitGroup
	sockets  []*netns.Socket
	failed   chan error
}

// startBulk opens up connections that send to e.to, and down connections that receive from it.
func (e *ends) startBulk(up, down int) (*bulk, error) {
	b := &bulk{failed: make(chan error, 2*(up+down))}
	for i := range up + down {
		near, far, err := e.connect()
		if err != nil {
			b.stop()
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
		buffer := make([]byte, bulkBuffer)
		for {
			if _, err := from.Write(buffer); err != nil {
				b.fail(err)
				return
			}
		}
	})
	b.running.Go(func() {
		buffer, last := make([]byte, bulkBuffer), time.Now()
		for {
			n, err := to.Read(buffer)
			if err != nil {
				b.fail(err)
				return
			}
			b.received.Add(int64(n))
			now := time.Now()
			for took, longest := int64(now.Sub(last)), b.pause.Load(); took > longest &&
				!b.pause.CompareAndSwap(longest, took); longest = b.pause.Load() {
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

// stop ends the streams; it returns the error that ended one of them earlier.
func (b *bulk) stop() error {
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

// bulkFigures are what a bulk measurement yields.
type bulkFigures struct {
	bytes   float64 // received by the pods
	seconds float64
	used    sample // from the first moment to the last
}

// measureBulk measures for duration, after the connections have run for warmUp.
func (e *ends) measureBulk(ctx context.Context, up, down int, t *benchTimes, take func() (sample, error)) (
	f bulkFigures, err error) {
	b, err := e.startBulk(up, down)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := step.Sleep(ctx, t.warmUp); err != nil {
		return f, err
	}
	before, err := take()
	if err != nil {
		return f, err
	}
	began, had := time.Now(), b.received.Load()
	if err := step.Sleep(ctx, t.bulk); err != nil {
		return f, err
	}
	f.seconds, f.bytes = time.Since(began).Seconds(), float64(b.received.Load()-had)
	after, err := take()
	f.used = after.minus(before)
	return f, err
}

// connect opens a TCP connection and returns both ends.
func (e *ends) connect() (near, far *netns.Socket, err error) {
	listener, err := netns.ListenTCP(e.to, e.port)
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	near, err = netns.NewSocket(e.from, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := near.Connect(netip.AddrPortFrom(e.target, listener.Port)); err != nil {
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

// measureDials returns how many times a second clients connect, send a request, read the answer and
// close.
func (e *ends) measureDials(ctx context.Context, warmUp, duration time.Duration) (float64, error) {
	var done atomic.Int64
	var stopping atomic.Bool
	var running sync.WaitGroup
	failed := make(chan error, dialers)
	var listeners []*netns.Socket
	defer func() {
		stopping.Store(true)
		for _, l := range listeners {
			l.Shutdown()
		}
		running.Wait()
		for _, l := range listeners {
			l.Close()
		}
	}()
	for i := range dialers {
		// A listener for each, so that ports in TIME-WAIT never run out.
		port := e.port
		if port != 0 {
			port += uint16(i)
		}
		l, err := netns.ListenTCP(e.to, port)
		if err != nil {
			return 0, err
		}
		listeners = append(listeners, l)
		running.Go(func() { answerRequests(l) })
		running.Go(func() {
			err := e.from.Do(func() error {
				for !stopping.Load() {
					if err := dialOnce(netip.AddrPortFrom(e.target, l.Port)); err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
			if err != nil && !stopping.Load() {
				failed <- err
			}
		})
	}
	err := step.Sleep(ctx, warmUp)
	began, had := time.Now(), done.Load()
	if err == nil {
		err = step.Sleep(ctx, duration)
	}
	rate := float64(done.Load()-had) / time.Since(began).Seconds()
	select {
	case err := <-failed:
		return 0, fmt.Errorf("connect and request: %w", err)
	default:
		return rate, err
	}
}

// dialOnce works in the network namespace of its thread.
func dialOnce(to netip.AddrPort) error {
	s, err := netns.OpenSocket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Connect(to); err != nil {
		return err
	}
	buffer := make([]byte, requestBytes)
	if _, err := s.Write(buffer); err != nil {
		return err
	}
	_, err = io.ReadFull(s, buffer)
	return err
}

// answerRequests answers one connection after the other until the listener is shut down. Clients
// close first, so that they have the TIME-WAIT state.
func answerRequests(s *netns.Socket) {
	buffer := make([]byte, requestBytes)
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		if _, err := io.ReadFull(conn, buffer); err == nil {
			conn.Write(buffer)
			conn.Read(buffer) // the end of the stream
		}
		conn.Close()
	}
}
