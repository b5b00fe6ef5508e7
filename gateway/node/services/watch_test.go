package services

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/integration/need"
)

// A whileLogged is called for each line of a log.
type whileLogged func()

func (whileLogged) Levels() []logrus.Level     { return logrus.AllLevels }
func (w whileLogged) Fire(*logrus.Entry) error { w(); return nil }

// TestDeaf: while the kernel reports no changes, the health check fails and the log says why.
func TestDeaf(t *testing.T) {
	need.Namespace(t)
	log, logged := test.NewNullLogger()
	s := &Server{log: log}
	var meanwhile string
	log.AddHook(whileLogged(func() { meanwhile = s.broken() }))
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 1)
	var listening sync.WaitGroup
	l := s.loop()
	listening.Go(func() { rtnl.Listen(ctx, l.Groups, l.Concerns, func() { changed <- struct{}{} }, l.Heard) })
	<-changed
	need.BreakNetlink(t, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	<-changed // what was missed
	if why := s.broken(); why != "" {
		t.Errorf("after the next subscription: %s", why)
	}
	cancel()
	listening.Wait()
	const want = "services: the kernel reports no changes: "
	if !strings.HasPrefix(meanwhile, want) || !strings.HasSuffix(meanwhile, "; trying again in 100ms") {
		t.Errorf("meanwhile: %q, want %q", meanwhile, want)
	}
	if n := len(logged.AllEntries()); n != 1 {
		t.Errorf("%d lines in the log, want 1", n)
	}
}
