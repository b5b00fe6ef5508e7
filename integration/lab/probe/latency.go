package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
)

const (
	pingBytes    = 64                     // of an ICMP message
	pingTimeout  = time.Second            // after which it is lost
	pingInterval = 500 * time.Microsecond // between an answer and the next request
)

// Latency is a distribution of round-trip times, in seconds.
type Latency struct{ P50, P99 float64 }

// MeasureLatency sends echo requests one after the other; the far pod's kernel answers. A lost one
// counts as pingTimeout.
func (e *Ends) MeasureLatency(ctx context.Context, duration time.Duration) (Latency, error) {
	s, err := newPing(e.From)
	if err != nil {
		return Latency{}, err
	}
	defer s.Close()
	err = errors.Join(s.SetTimeout(pingTimeout), s.Connect(netip.AddrPortFrom(e.Target, 0)))
	if err != nil {
		return Latency{}, err
	}
	var rtts []float64
	request, reply := make([]byte, pingBytes), make([]byte, 2*pingBytes)
	for began, sequence := time.Now(), uint16(0); time.Since(began) < duration; sequence++ {
		if ctx.Err() != nil {
			return Latency{}, context.Cause(ctx)
		}
		rtt, err := echo(s, request, reply, sequence)
		if err != nil {
			return Latency{}, err
		}
		rtts = append(rtts, rtt.Seconds())
		time.Sleep(pingInterval)
	}
	slices.Sort(rtts)
	return Latency{rtts[len(rtts)/2], rtts[len(rtts)*99/100]}, nil
}

// newPing makes a socket for echo requests of the host's family.
func newPing(h *netns.Host) (*netns.Socket, error) {
	if h.Address.Is6() {
		return netns.NewSocket(h, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
	}
	return netns.NewSocket(h, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
}

// echo returns the round-trip time of one request. The kernel fills in identifier and checksum and
// delivers only replies with that identifier.
func echo(s *netns.Socket, request, reply []byte, sequence uint16) (time.Duration, error) {
	echoReply := byte(0)
	if request[0] = 8; s.Family == unix.AF_INET6 {
		request[0], echoReply = 128, 129 // RFC 4443, Section 4
	}
	binary.BigEndian.PutUint16(request[6:], sequence)
	began := time.Now()
	if _, err := s.Write(request); err != nil {
		return 0, err
	}
	for {
		n, err := s.Read(reply)
		rtt := time.Since(began)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.EAGAIN) || rtt > pingTimeout {
			return pingTimeout, nil
		}
		if err != nil {
			return 0, err
		}
		if n >= 8 && reply[0] == echoReply && binary.BigEndian.Uint16(reply[6:]) == sequence {
			return rtt, nil
		}
	}
}

// Reach returns when the far pod answers.
func (e *Ends) Reach(ctx context.Context) error {
	if err := e.Answered(ctx, IPHeader(e.Target)+pingBytes, 100*time.Millisecond); err != nil {
		return fmt.Errorf("%s does not reach %s: %w", e.From.Name, e.To.Name, err)
	}
	return nil
}

// Answered pings with packets of size bytes until there is an answer, which may take wait, or ctx
// is done.
func (e *Ends) Answered(ctx context.Context, size int, wait time.Duration) error {
	s, err := newPing(e.From)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.SetTimeout(wait); err != nil {
		return err
	}
	pace := time.NewTicker(Pace)
	defer pace.Stop()
	request, reply := make([]byte, size-IPHeader(e.Target)), make([]byte, size)
	for sequence := uint16(0); ; sequence++ {
		err := s.Connect(netip.AddrPortFrom(e.Target, 0)) // there may be no route yet
		if err == nil {
			var rtt time.Duration
			if rtt, err = echo(s, request, reply, sequence); err == nil && rtt < pingTimeout {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-pace.C:
		}
	}
}

// Pace is the pause between two pings until one is answered.
const Pace = 20 * time.Millisecond
