package rtnl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	firstPause   = 100 * time.Millisecond // after a subscription has failed
	longestPause = 10 * time.Second       // after several have
)

// Listen calls changed when the kernel reports a change in these groups that concerns the caller,
// until ctx is done. It also calls changed whenever reports may be missing: after each
// subscription, and when the socket's buffer was full. When a subscription fails, Listen subscribes
// again after a pause, which doubles as long as subscriptions fail early. It calls heard, unless it
// is nil, with the reason, and with nil after the next subscription.
func Listen(ctx context.Context, groups []uint, concerns func(syscall.NetlinkMessage) bool, changed func(),
	heard func(error)) {
	if heard == nil {
		heard = func(error) {}
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		began := time.Now()
		err := hear(ctx, groups, concerns, changed, heard)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= longestPause {
			pause = firstPause
		}
		heard(fmt.Errorf("the kernel reports no changes: %w; trying again in %v", err, pause))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hear is Listen until a subscription fails.
func hear(ctx context.Context, groups []uint, concerns func(syscall.NetlinkMessage) bool, changed func(),
	heard func(error)) error {
	socket, err := subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return err
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, socket.Close)() // ends the wait for messages
	heard(nil)
	changed()
	for {
		messages, _, err := socket.Receive()
		full := errors.Is(err, unix.ENOBUFS) // more than the socket's buffer holds
		if err != nil && !full {
			return err
		}
		if full || slices.ContainsFunc(messages, concerns) {
			changed()
		}
	}
}

// subscribe opens a socket for the kernel's reports. Tests replace it.
var subscribe = func(protocol int, groups ...uint) (subscription, error) { return nl.Subscribe(protocol, groups...) }

// A subscription receives the kernel's reports.
type subscription interface {
	Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error)
	Close()
}
