package attack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/netns"
	"culvert/integration/lab/probe"
	"culvert/integration/lab/step"
)

// narrowTime is how soon TCP must continue.
const narrowTime = 10 * time.Second

// checkNarrow makes a device of milan's gateway carry less than its mtu needs, while there is a TCP
// connection. The connection must continue soon, and the gateway's kernel must not fragment what it
// cannot send whole.
func (l *attacks) checkNarrow(device string, e *probe.Ends) func(context.Context) (string, error) {
	// Less than the labs' mtu plus the headers of either tunnel, but enough for the IPv6 minimum
	// (RFC 8200, Section 5).
	mtu, gateway := l.ofOuter(1340, 1380), l.Host("milan/gateway")
	set := func(mtu int) error {
		return gateway.Do(func() error { return netns.SetMTU(device, mtu) })
	}
	return func(ctx context.Context) (_ string, err error) {
		defer step.Catch(&err)
		step.Try(e.Reach(ctx))
		near, far := step.Must2(e.Connect())
		defer near.Close()
		defer far.Close()
		step.Try(errors.Join(near.SetTimeout(patience), far.SetTimeout(patience), transferOver(near, far,
			probe.SmallStream)))
		before := step.Must(outerCounts(ctx, gateway))
		defer func() { err = errors.Join(err, set(lab.UnderlayMTU)) }()
		step.Try(set(mtu))
		began := time.Now()
		step.Try(transferOver(near, far, probe.SmallStream))
		took := time.Since(began)
		after := step.Must(outerCounts(ctx, gateway))
		switch {
		case after.fragments != before.fragments:
			return "", fmt.Errorf("%d fragments of the tunnels' datagrams, want none", after.fragments-before.fragments)
		case took > narrowTime:
			return "", fmt.Errorf("%d bytes have arrived after %v, want at most %v", probe.SmallStream, took,
				narrowTime)
		}
		return fmt.Sprintf("mtu %d: on after %.1f s, no fragments", mtu, took.Seconds()), nil
	}
}

// ofOuter returns one of two values by the family of the tunnels' underlay.
func (l *attacks) ofOuter(four, six int) int {
	if l.Outer().Is6() {
		return six
	}
	return four
}
