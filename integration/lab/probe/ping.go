package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/step"
)

const pings = 100

// CheckPing sends requests of the default size, and some that fill the MTU.
func (e *Ends) CheckPing(ctx context.Context) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(NewPinger(e.From))
	defer p.Close()
	wait := step.Must(watchEchoes(e.To, p.id, pings))
	largest := LargeMTU
	if e.Size > 0 {
		largest = e.Size
	}
	rtts, err := p.series(ctx, e.Target, pings, []int{84, 84, largest})
	sources, watchErr := wait()
	step.Try(errors.Join(err, watchErr))
	if len(sources) < pings {
		return "", fmt.Errorf("%s saw %d requests, want %d", e.To.Name, len(sources), pings)
	}
	for _, s := range sources {
		if s != e.WantSource {
			return "", fmt.Errorf("%s saw source %s, want %s", e.To.Name, s, e.WantSource)
		}
	}
	return fmt.Sprintf("%s, from %s", percentiles(rtts), e.WantSource), nil
}

// series pings n times with the sizes in turn, until a request has no answer; every answer must be
// a reply.
func (p *Pinger) series(ctx context.Context, to netip.Addr, n int, sizes []int) ([]time.Duration, error) {
	var rtts []time.Duration
	for i := range n {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rtt, err := p.Ping(to, sizes[i%len(sizes)])
		if err != nil {
			return rtts, err
		}
		rtts = append(rtts, rtt)
	}
	return rtts, nil
}

// Ping sends one request, which must have a reply, and returns the round-trip time.
func (p *Pinger) Ping(to netip.Addr, size int) (time.Duration, error) {
	a, err := p.Echo(to, size, MaxTTL)
	if err != nil {
		return 0, err
	}
	if a.Message.Type != p.Types().reply {
		return 0, fmt.Errorf("%v (code %d) from %s, want an echo reply", a.Message.Type, a.Message.Code, a.From)
	}
	return a.rtt, nil
}

// CheckInternal pings a gateway's internal address.
func CheckInternal(h *netns.Host, internal netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(NewPinger(h))
	defer p.Close()
	rtts := step.Must(p.series(context.Background(), internal, 20, []int{84}))
	return percentiles(rtts), nil
}

// CheckTrace sends echo requests with growing TTL and compares who answers.
func CheckTrace(ctx context.Context, from *netns.Host, to netip.Addr, want []netip.Addr) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(NewPinger(from))
	defer p.Close()
	var hops []netip.Addr
	for ttl := 1; ttl <= len(want)+1 && ctx.Err() == nil; ttl++ {
		a, err := p.Echo(to, 84, ttl)
		if err != nil {
			return "", fmt.Errorf("hop %d after %v: %w", ttl, hops, err)
		}
		hops = append(hops, a.From)
		if a.Message.Type == p.Types().reply {
			break
		}
		if a.Message.Type != p.Types().TimeExceeded {
			return "", fmt.Errorf("hop %d: %v (code %d) from %s, want time exceeded", ttl, a.Message.Type,
				a.Message.Code, a.From)
		}
		if a.Quote.Source != from.Address || a.Quote.Destination != to {
			return "", fmt.Errorf("hop %d (%s) quotes a packet from %s to %s, want what was sent: from %s to %s",
				ttl, a.From, a.Quote.Source, a.Quote.Destination, from.Address, to)
		}
	}
	if !slices.Equal(hops, want) {
		return "", fmt.Errorf("hops %v, want %v", hops, want)
	}
	return fmt.Sprintf("%d hops", len(hops)), nil
}

// CheckPingUnderLoad measures latency during a bulk stream. On a lossy path, up to two requests or
// one in twenty may have no answer.
func (e *Ends) CheckPingUnderLoad(ctx context.Context, bulk int64, lossy bool) (_ string, err error) {
	defer step.Catch(&err)
	p := step.Must(NewPinger(e.From))
	defer p.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loaded := make(chan error, 1)
	go func() {
		_, err := e.CheckStream(ctx, 2*bulk, 0)
		loaded <- err
	}()
	var rtts []time.Duration
	lost := 0
	for {
		more, err := p.series(ctx, e.Target, 10, []int{84})
		rtts = append(rtts, more...)
		if lossy && errors.Is(err, ErrUnanswered) {
			lost++
		} else if err != nil {
			return "", err
		}
		select {
		case err := <-loaded:
			sent := len(rtts) + lost
			switch {
			case err != nil:
				return "", fmt.Errorf("the stream beside the pings: %w", err)
			case lost > max(2, sent/20) || lost == sent:
				return "", fmt.Errorf("%d of %d echo requests had no answer, at most %d may have none", lost, sent,
					max(2, sent/20))
			case lost > 0:
				return fmt.Sprintf("%s beside a TCP stream, %d of %d lost", percentiles(rtts), lost, sent), nil
			}
			return percentiles(rtts) + " beside a TCP stream", nil
		default:
		}
	}
}
