package links

import (
	"context"
	"errors"
	"fmt"
	"time"

	"culvert/gateway/node/rtnl"
	"culvert/gateway/unixsocket"
)

const (
	// holdName is the lock of the process that keeps the links of a network namespace. Two
	// processes would remove each other's links.
	holdName = "culvert-links"
	// holdPatience is how long to wait for a process that is exiting to release the links, and
	// holdPause the time between two tries.
	holdPatience = 5 * time.Second
	holdPause    = 50 * time.Millisecond
)

// hold waits until no other process keeps the links, and locks them for this one. release is nil
// after an error, and also, without an error, if ctx ends first.
func hold(ctx context.Context, patience time.Duration) (release func(), err error) {
	late := time.After(patience)
	for {
		release, err = unixsocket.Hold(holdName)
		if !errors.Is(err, unixsocket.ErrHeld) {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-late:
			return nil, fmt.Errorf("%w; %s is held by %s", ErrHeld, holdName, rtnl.NameHolder(holdName))
		case <-time.After(holdPause):
		}
	}
}

// ErrHeld says that another Set runs in this network namespace.
var ErrHeld = errors.New(
	"links: another culvert node with --liqo or --kube keeps the links of this node, and one process keeps them all; " +
		"stop it first, under Kubernetes by deleting its DaemonSet")
