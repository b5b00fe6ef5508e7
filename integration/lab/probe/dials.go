package probe

import (
	"context"
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

// MeasureDials returns how many times a second clients connect, send a request, read the answer and
// close.
func (e *Ends) MeasureDials(ctx context.Context, warmUp, duration time.Duration) (float64, error) {
	var done atomic.Int64
	var stopping atomic.Bool
	var running sync.WaitGroup
	failed := make(chan error, Dialers)
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
	for i := range Dialers {
		// A listener for each, so that ports in TIME-WAIT never run out.
		port := e.Port
		if port != 0 {
			port += uint16(i)
		}
		l, err := netns.ListenTCP(e.To, port)
		if err != nil {
			return 0, err
		}
		listeners = append(listeners, l)
		running.Go(func() { answerRequests(l) })
		running.Go(func() {
			err := e.From.Do(func() error {
				for !stopping.Load() {
					if err := dialOnce(netip.AddrPortFrom(e.Target, l.Port)); err != nil {
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
