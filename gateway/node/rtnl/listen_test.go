package rtnl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

// A script is a subscription that receives what a test sends: a message's type or an error.
type script struct {
	next  <-chan any
	ended chan struct{}
	close func()
}

func (s *script) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	select {
	case <-s.ended:
		return nil, nil, errors.New("closed")
	case x := <-s.next:
		if err, ok := x.(error); ok {
			return nil, nil, err
		}
		return []syscall.NetlinkMessage{{Header: syscall.NlMsghdr{Type: x.(uint16)}}}, nil, nil
	}
}

func (s *script) Close() { s.close() }

// TestListen: whatever ends a subscription, Listen says why, subscribes again after a pause, and
// tells once, because changes may have been missed. A full buffer ends none.
func TestListen(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		defer func(before func(int, ...uint) (subscription, error)) { subscribe = before }(subscribe)
		var refused atomic.Bool
		next, events := make(chan any), make(chan string, 20)
		subscribe = func(int, ...uint) (subscription, error) {
			if refused.Load() {
				return nil, unix.ENOMEM
			}
			events <- "subscribed"
			ended := make(chan struct{})
			return &script{next, ended, sync.OnceFunc(func() { close(ended) })}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Listen(ctx, nil, func(m syscall.NetlinkMessage) bool { return m.Header.Type == unix.RTM_DELLINK },
				func() { events <- "told" }, func(err error) { events <- fmt.Sprint(err) })
		}()
		is := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			got := []string{}
			for len(events) > 0 {
				got = append(got, <-events)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %q, want %q", what, got, want)
			}
		}
		failed := func(why, pause string) string {
			return "the kernel reports no changes: " + why + "; trying again in " + pause
		}
		is("at first", "subscribed", "<nil>", "told")
		next <- uint16(unix.RTM_DELLINK)
		is("a change", "told")
		next <- uint16(unix.RTM_NEWLINK)
		is("another change")
		next <- unix.ENOBUFS
		is("a full buffer", "told")
		next <- errors.New("short")
		is("an error", failed("short", "100ms"))
		time.Sleep(firstPause)
		is("after it", "subscribed", "<nil>", "told")
		refused.Store(true)
		next <- errors.New("short")
		is("the next", failed("short", "200ms"))
		time.Sleep(20 * time.Second)
		const none = "cannot allocate memory"
		is("refused", failed(none, "400ms"), failed(none, "800ms"), failed(none, "1.6s"), failed(none, "3.2s"),
			failed(none, "6.4s"), failed(none, "10s"))
		refused.Store(false)
		time.Sleep(longestPause)
		is("no longer refused", "subscribed", "<nil>", "told")
		time.Sleep(longestPause)
		next <- errors.New("late")
		is("an error after a while", failed("late", "100ms"))
		time.Sleep(firstPause)
		is("after that", "subscribed", "<nil>", "told")
		cancel()
		<-ended
		is("at the end")
	})
}
