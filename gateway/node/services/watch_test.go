package services

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A failingNews is a netlink socket that fails after some messages.
type failingNews struct {
	messages int
	closed   chan struct{}
}

func (f *failingNews) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	if f.messages--; f.messages >= 0 {
		return []syscall.NetlinkMessage{{Header: syscall.NlMsghdr{Type: unix.RTM_DELRULE}}}, nil, nil
	}
	if f.messages < -100 { // permanently
		<-f.closed
	}
	return nil, nil, errors.New("short netlink message")
}

func (f *failingNews) Close() { close(f.closed) }

// Whatever ends the subscription to changes of rules and routes, it is renewed, and the health
// check fails until then.
func TestWatchAsksAgain(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		defer func(before func() (newsSocket, error)) { subscribe = before }(subscribe)
		var openings atomic.Int32
		subscribe = func() (newsSocket, error) {
			opened := openings.Add(1)
			if opened == 2 {
				return nil, unix.ENOMEM
			}
			n := &failingNews{messages: 1, closed: make(chan struct{})}
			if opened == 4 {
				n.messages = 0
				n.messages -= 100
			}
			return n, nil
		}
		log := logrus.New()
		log.Out = io.Discard
		s := &Server{log: log}
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		go s.listen(ctx, changed)
		synctest.Wait()
		if why := s.broken(); !strings.Contains(why, "short netlink message") {
			t.Errorf("after the first failure: %q", why)
		}
		time.Sleep(quietTime + time.Millisecond)
		synctest.Wait()
		if why := s.broken(); openings.Load() != 2 || !strings.Contains(why, "cannot allocate memory") {
			t.Errorf("opened %d times: %q", openings.Load(), why)
		}
		time.Sleep(retryTime)
		synctest.Wait()
		if why := s.broken(); openings.Load() != 4 || why != "" {
			t.Errorf("opened %d times: %q", openings.Load(), why)
		}
		select {
		case <-changed:
		default:
			t.Error("nothing was told of changes")
		}
		cancel()
		synctest.Wait()
	})
}
