package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
)

// A rate passes if at most lossLimit of the datagrams are lost and the sender achieves at least
// paceLimit of it.
const (
	lossLimit = 0.005
	paceLimit = 0.97

	firstRate  = 20e3 // datagrams per second
	lowestRate = 1e3
	rateFactor = 1.5
	rateTries  = 2 // one hiccup of the machine does not fail a rate
	pace       = 50 * time.Microsecond
	drain      = 100 * time.Millisecond // after which missing datagrams are lost
	udpBuffer  = 16 << 20               // bytes, so that the receiving pod is not the limit
)

// MeasureUDP returns the highest rate of datagrams with size bytes of payload, per second, with at
// most lossLimit lost: by a ladder, then a bisection.
func (e *Ends) MeasureUDP(ctx context.Context, size, bisections int, step time.Duration) (float64, error) {
	passes := func(rate float64) (float64, bool, error) {
		for range rateTries {
			if err := ctx.Err(); err != nil {
				return 0, false, err
			}
			sent, received, err := e.SendPaced(rate, size, step)
			if err != nil {
				return 0, false, err
			}
			if received >= sent*(1-lossLimit) && sent >= rate*step.Seconds()*paceLimit {
				return received / step.Seconds(), true, nil
			}
		}
		return 0, false, nil
	}
	best, low, high := 0.0, 0.0, 0.0
	for rate := float64(firstRate); ; {
		got, ok, err := passes(rate)
		if err != nil {
			return 0, err
		}
		if ok {
			best, low = max(best, got), rate
		} else {
			high = rate
		}
		switch {
		case high == 0:
			rate *= rateFactor
		case low == 0 && rate/rateFactor < lowestRate:
			return 0, nil
		case low == 0:
			rate /= rateFactor
		case bisections == 0:
			return best, nil
		default:
			bisections--
			rate = (low + high) / 2
		}
	}
}

// SendPaced sends at rate for duration and counts what arrives.
func (e *Ends) SendPaced(rate float64, size int, duration time.Duration) (sent, received float64, err error) {
	to, err := netns.NewSocket(e.To, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, 0, err
	}
	defer to.Close()
	from, err := netns.NewSocket(e.From, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, 0, err
	}
	defer from.Close()
	// Only the system's root can exceed the limit.
	if unix.SetsockoptInt(to.FD, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer) != nil {
		unix.SetsockoptInt(to.FD, unix.SOL_SOCKET, unix.SO_RCVBUF, udpBuffer)
	}
	err = errors.Join(to.Bind(netip.AddrPortFrom(e.To.Address, 0)), to.SetTimeout(drain))
	if err == nil {
		err = from.Connect(netip.AddrPortFrom(e.Target, to.Port))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("UDP: %w", err)
	}
	var done atomic.Bool
	arrived := make(chan int)
	go func() {
		buffer, n := make([]byte, 2048), 0
		for {
			if _, err := to.Read(buffer); err == nil {
				n++
			} else if done.Load() {
				arrived <- n
				return
			}
		}
	}()
	n, err := pacedWrites(from, rate, size, duration)
	done.Store(true)
	return float64(n), float64(<-arrived), err
}

// pacedWrites sends single datagrams on its own thread: those that are due, then a pause.
func pacedWrites(s *netns.Socket, rate float64, size int, duration time.Duration) (sent int, err error) {
	err = netns.OnThread(func() error {
		// Makes pauses exact, instead of 50 µs longer.
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
			return err
		}
		payload := make([]byte, size)
		pause := unix.NsecToTimespec(pace.Nanoseconds())
		began := time.Now()
		for {
			elapsed := time.Since(began)
			if elapsed >= duration {
				return nil
			}
			// A sender that cannot keep the rate checks the clock now and then.
			for due := min(int(rate*elapsed.Seconds())+1, sent+64); sent < due; sent++ {
				if _, err := s.Write(payload); err != nil {
					return err
				}
			}
			if sent > int(rate*elapsed.Seconds()) {
				unix.Nanosleep(&pause, nil)
			}
		}
	})
	return sent, err
}
