package links

import (
	"context"
	"errors"
	"time"

	"culvert/gateway/unixsocket"
)

const (
	// holdName is the name that whoever keeps the links of a network namespace holds: two would remove each other's.
	holdName = "culvert-links"
	// holdPatience is how long a process that ends may still have the links, and holdPause passes between two looks.
	holdPatience = 5 * time.Second
	holdPause    = 50 * time.Millisecond
)

// hold makes this process the one that keeps the links, once no other does. release is nil if it fails, and also, without an error, if ctx ends first.
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
			return nil, ErrHeld
		case <-time.After(holdPause):
		}
	}
}

// ErrHeld says that another Set runs in this network namespace.
var ErrHeld = errors.New("links: another culvert node with --liqo or --kube keeps the links of this node, and one process keeps them all; " +
	"stop it first, under Kubernetes by deleting its DaemonSet")
