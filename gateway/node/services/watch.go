package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/node/rtnl"
	"culvert/gateway/node/services/steer"
)

const (
	tellPause = time.Minute      // between two log lines about restored rules and routes
	retryTime = 10 * time.Second // after what could not be restored, and without reports of changes
)

// watch restores rules and routes to the device that others remove, and follows the addresses of
// this machine, until ctx is done.
func (s *Server) watch(ctx context.Context) {
	loop := s.loop()
	var failure rtnl.Failure
	var told time.Time
	changes := 0 // not logged yet
	loop.Run(ctx, retryTime, func() (mended bool) {
		back, err := s.mend(ctx)
		if ctx.Err() != nil {
			return false
		}
		s.fault.Store(text(err)) // before the log, so that the status already shows what the log says
		if failure.Changed(err) {
			s.logMend(err)
		}
		if changes += back; back > 0 && time.Since(told) >= tellPause {
			s.log.WithField("changes", changes).Warn(
				"another program has changed rules or routes that lead to services: they are restored")
			told, changes = time.Now(), 0
		}
		return back > 0
	})
}

// logMend logs a new outcome of mend.
func (s *Server) logMend(err error) {
	if err == nil {
		s.log.Info("the addresses, rules and routes that services need are there again")
		return
	}
	s.log.WithError(err).Warn(
		"addresses, rules or routes that services need are gone and cannot be restored; trying again")
}

func text(err error) *string {
	if err == nil {
		return nil
	}
	why := err.Error()
	return &why
}

// loop looks after changes that may affect this server. While the kernel reports none, it looks
// every retryTime, and the health check fails.
func (s *Server) loop() *rtnl.Loop {
	l := rtnl.NewLoop(func(m syscall.NetlinkMessage) bool { return steer.Concerns(m, s.index) },
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	l.Heard = func(err error) {
		if err != nil {
			err = fmt.Errorf("services: %w", err)
		}
		if was := s.deaf.Swap(text(err)); err != nil && was == nil {
			s.log.WithError(err).Warn("rules and routes are not watched: what others remove comes back within seconds")
		}
	}
	return l
}

// mend restores the routes and rules to the device, and returns how many changes that took.
func (s *Server) mend(ctx context.Context) (back int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	s.watchPorts()
	before := s.steering.Made
	// The local table comes first: without a rule for it the machine is cut off.
	if err := s.steering.MoveLocal(); err != nil {
		return 0, err
	}
	link, err := netlink.LinkByIndex(s.index)
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return 0, err
	}
	own, missing := OwnAddresses(s.config)
	if own == nil {
		return 0, missing
	}
	left := s.orphans
	if len(left.at) > 0 {
		left = s.findOrphans(s.config)
	}
	p := s.config.plan(own, left)
	if err := s.steering.Apply(&p.Plan, s.config.sources(own)); err != nil {
		return 0, errors.Join(missing, err)
	}
	s.announcer.Apply(s.config.Answers, s.config.AnnounceOn)
	back = s.steering.Made - before
	if slices.Equal(own, s.own) && slices.Equal(left.at, s.orphans.at) {
		return back, missing
	}
	prepared, err := s.engine.Prepare(&p.nat)
	if err != nil {
		return 0, err
	}
	s.engine.Commit(prepared)
	s.own, s.orphans = own, orphans{left.at, p.ends}
	return 0, missing // nobody removed these
}
