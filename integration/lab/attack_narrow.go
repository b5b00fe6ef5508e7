package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// narrowTime is how soon TCP must continue.
const narrowTime = 10 * time.Second

// checkNarrow makes a device of milan's gateway carry less than its mtu needs, while there is a TCP
// connection. The connection must continue soon, and the gateway's kernel must not fragment what it
// cannot send whole.
func (l *Lab) checkNarrow(device string, e *ends) func(context.Context) (string, error) {
	// Less than the labs' mtu plus the headers of either tunnel, but enough for the IPv6 minimum
	// (RFC 8200, Section 5).
	mtu, gateway := l.ofOuter(1340, 1380), l.Host("milan/gateway")
	set := func(mtu int) error {
		return gateway.Do(func() error { return setMTU(device, mtu)(l) })
	}
	return func(ctx context.Context) (_ string, err error) {
		defer catch(&err)
		try(e.reach(ctx))
		near, far := must2(e.connect())
		defer near.close()
		defer far.close()
		try(errors.Join(near.setTimeout(patience), far.setTimeout(patience), transferOver(near, far, smallStream)))
		before := must(outerCounts(ctx, gateway))
		defer func() { err = errors.Join(err, set(underlayMTU)) }()
		try(set(mtu))
		began := time.Now()
		try(transferOver(near, far, smallStream))
		took := time.Since(began)
		after := must(outerCounts(ctx, gateway))
		switch {
		case after.fragments != before.fragments:
			return "", fmt.Errorf("%d fragments of the tunnels' datagrams, want none", after.fragments-before.fragments)
		case took > narrowTime:
			return "", fmt.Errorf("%d bytes have arrived after %v, want at most %v", smallStream, took, narrowTime)
		}
		return fmt.Sprintf("mtu %d: on after %.1f s, no fragments", mtu, took.Seconds()), nil
	}
}

// ofOuter returns one of two values by the family of the tunnels' underlay.
func (l *Lab) ofOuter(four, six int) int {
	if l.outer().is6() {
		return six
	}
	return four
}
