package services

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	settleTime = 100 * time.Millisecond // after a change of somebody else's, for more of them
	mendPause  = time.Second            // after changes that were undone: somebody may make them again and again
	tellPause  = time.Minute            // between two lines of the log about them
	retryTime  = 10 * time.Second       // after what could not be put back
)

// watch puts back what others remove of the rules and routes that lead to the device, and follows the addresses of this machine, until ctx
// is done.
func (s *Server) watch(ctx context.Context) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		s.log.WithError(err).Warn("rules and routes are not watched: what others remove comes back at SIGHUP only")
		return
	}
	defer context.AfterFunc(ctx, socket.Close)()
	changed := make(chan struct{}, 1)
	go s.hear(ctx, socket, changed)
	timer := time.NewTimer(settleTime) // for what has happened since New
	defer timer.Stop()
	settling, failing := true, false
	var mended, told time.Time
	changes := 0 // that were not told
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !settling {
				timer.Reset(max(settleTime, time.Until(mended.Add(mendPause))))
			}
			settling = true
			continue
		case <-timer.C:
		}
		settling = false
		back, err := s.mend(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !failing {
				s.log.WithError(err).Warn("addresses, rules or routes that services need are gone, and do not come back")
			}
			timer.Reset(retryTime)
		}
		if back > 0 {
			mended = time.Now()
			if changes += back; mended.Sub(told) >= tellPause {
				s.log.WithField("changes", changes).Warn("somebody else has changed rules or routes that lead to services: they are as they were")
				told, changes = mended, 0
			}
		}
		if failing = err != nil; failing {
			why := err.Error()
			s.fault.Store(&why)
		} else {
			s.fault.Store(nil)
		}
	}
}

// hear tells of changes that may concern this server, until ctx is done and the socket closed.
func (s *Server) hear(ctx context.Context, socket *nl.NetlinkSocket, changed chan<- struct{}) {
	for {
		messages, _, err := socket.Receive()
		full := errors.Is(err, unix.ENOBUFS) // there was more than the socket holds
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !full:
			s.log.WithError(err).Warn("rules and routes are not watched: what others remove comes back at SIGHUP only")
			return
		case full || slices.ContainsFunc(messages, s.concerns):
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
}

// concerns reports whether a message of the kernel's may be about what leads to the device.
func (s *Server) concerns(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_DELROUTE:
		const protocol = 5 // of struct rtmsg
		return len(m.Data) > protocol && m.Data[protocol] == lasting
	case unix.RTM_NEWLINK, unix.RTM_DELLINK: // a device that goes down takes its routes along
		const index = 4 // of struct ifinfomsg
		return len(m.Data) >= index+4 && binary.NativeEndian.Uint32(m.Data[index:]) == uint32(s.index) || bytes.Contains(m.Data, []byte(pulsePrefix))
	}
	return false
}

// mend makes the kernel lead to the device what it is to, and returns how many changes that took.
func (s *Server) mend(ctx context.Context) (back int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	before := s.steering.made
	// The local table comes first: without a rule for it the machine is cut off.
	if err := s.steering.moveLocal(); err != nil {
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
	p := s.config.plan(own)
	if err := s.steering.apply(p, s.config.sources(own)); err != nil {
		return 0, errors.Join(missing, err)
	}
	s.announcer.apply(s.config.Answers, s.config.AnnounceOn)
	back = s.steering.made - before
	if slices.Equal(own, s.own) {
		return back, missing
	}
	prepared, err := s.engine.Prepare(&p.nat)
	if err != nil {
		return 0, err
	}
	s.engine.Commit(prepared)
	s.own = own
	return 0, missing // these are not what somebody has removed
}
