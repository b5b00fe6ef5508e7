package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// narrowTime is how soon TCP must continue.
const narrowTime = 10 * time.Second

// narrowMTU is less than the labs' mtu plus the headers of either tunnel, but enough for the IPv6 minimum (RFC 8200, Section 5).
func (l *Lab) narrowMTU() int {
	if l.outer().is6() {
		return 1380
	}
	return 1340
}

// checkNarrow makes a device of milan's gateway carry less than its mtu needs, while there is a TCP connection. The connection must continue soon,
// and the gateway's kernel must not fragment what it cannot send whole.
func (l *Lab) checkNarrow(device string, e *ends) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if err := e.reach(ctx); err != nil {
			return "", err
		}
		took, err := l.narrow(ctx, l.Host("milan/gateway"), device, e)
		return fmt.Sprintf("mtu %d: on after %.1f s, no fragments", l.narrowMTU(), took.Seconds()), err
	}
}

func (l *Lab) narrow(ctx context.Context, gateway *Host, device string, e *ends) (took time.Duration, err error) {
	near, far, err := e.connect()
	if err != nil {
		return 0, err
	}
	defer near.close()
	defer far.close()
	if err := errors.Join(near.setTimeout(patience), far.setTimeout(patience), transferOver(near, far, smallStream)); err != nil {
		return 0, err
	}
	before, err := outerCounts(ctx, gateway)
	if err != nil {
		return 0, err
	}
	set := func(mtu int) error {
		return gateway.Do(func() error {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, mtu)
		})
	}
	defer func() { err = errors.Join(err, set(underlayMTU)) }()
	if err := set(l.narrowMTU()); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := transferOver(near, far, smallStream); err != nil {
		return 0, err
	}
	took = time.Since(began)
	after, err := outerCounts(ctx, gateway)
	switch {
	case err != nil:
		return 0, err
	case after.fragments != before.fragments:
		return 0, fmt.Errorf("%d fragments of the tunnels' datagrams, want none", after.fragments-before.fragments)
	case took > narrowTime:
		return 0, fmt.Errorf("%d bytes have arrived after %v, want at most %v", smallStream, took, narrowTime)
	}
	return took, nil
}
