package links

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"

	"culvert/gateway/node/carry"
	"culvert/gateway/node/rtnl"
)

// reconcile makes the machine match the desired links.
func (s *Set) reconcile(now time.Time, report func([]Status)) {
	s.mu.Lock()
	desired, told := s.desired, s.told
	s.mu.Unlock()
	if !told {
		desired = s.leftBehind()
	}
	next := make([]Status, 0, len(desired))
	names := map[string]bool{}
	for _, l := range desired {
		st := Status{Link: l}
		switch {
		case names[l.Name]:
			st.State, st.Err = Refused, fmt.Errorf("interface: %s is the name of another link", l.Name)
		case len(names) == maxLinks:
			st.State, st.Err = Refused, fmt.Errorf("links: no more than %d links", maxLinks)
		default:
			names[l.Name] = true
			st.State, st.Warning, st.Err = s.follow(&l, now)
		}
		next = append(next, st)
	}
	for name, c := range s.carriers {
		if !names[name] {
			s.drop(c)
			s.log.WithField("interface", name).Info("link is no longer wanted")
		}
	}
	if len(s.carriers) == 0 {
		s.hub.Close()
	}
	if told {
		s.prune(names)
	}
	if len(s.carriers) > 0 && !s.loaded && s.kernelGeneve(now) {
		s.loaded = true
		s.log.WithField("remedy", "to give the links up: culvert node --liqo --remove").Info(
			"the kernel has Geneve links by now; culvert keeps those that it has")
	}
	s.mu.Lock()
	changed := !slices.EqualFunc(s.statuses, next, func(a, b Status) bool {
		return a.Link == b.Link && a.State == b.State && a.Warning == b.Warning &&
			fmt.Sprint(a.Err) == fmt.Sprint(b.Err)
	})
	s.statuses = next
	s.mu.Unlock()
	if changed && report != nil {
		report(next)
	}
}

// leftBehind returns the links of an earlier process's devices.
func (s *Set) leftBehind() (all []Link) {
	devices, err := own()
	if s.unread.Changed(err) && err != nil {
		s.log.WithError(err).Warn("devices of an earlier run are not looked for")
	}
	for _, d := range devices {
		if l, ok := fromDevice(d); ok {
			all = append(all, l)
		}
	}
	return all
}

// follow creates, adopts or changes the device of one link.
func (s *Set) follow(l *Link, now time.Time) (State, string, error) {
	if err := l.check(); err != nil {
		return Refused, "", err
	}
	c := s.carriers[l.Name]
	d, err := rtnl.FindLink(l.Name)
	if err != nil {
		return Refused, "", fmt.Errorf("links: %w", err)
	}
	if c != nil && (c.gone() || d == nil || d.Attrs().Index != c.index) {
		if d == nil || d.Attrs().Index != c.index {
			s.away[l.Name] = now
			s.log.WithField("interface", l.Name).Info("device was removed by somebody else")
		}
		s.drop(c)
		c = nil
	}
	if d == nil && s.kernelGeneve(now) {
		return Kernel, "", nil
	}
	if d != nil && d.Type() == "geneve" {
		if len(s.carriers) > 0 && d.Attrs().Flags&net.FlagUp == 0 {
			return Kernel,
				fmt.Sprintf("the kernel's link cannot go up while culvert carries others by UDP port %d; give those up, without culvert's DaemonSet on this node: "+
					"culvert node --liqo --remove", s.port), nil
		}
		return Kernel, "", nil
	}
	if d != nil && !isOurs(d) {
		return Refused, "", fmt.Errorf(
			"interface: %s exists and is a %s link that culvert did not make; remove it: ip link del %s", l.Name,
			d.Type(), l.Name)
	}
	warning, err := l.way()
	if err != nil {
		return Refused, "", err
	}
	if d == nil {
		if left := remakePause - now.Sub(s.away[l.Name]); left > 0 {
			time.AfterFunc(left, s.wakeUp)
			return Pending, "", nil
		}
		delete(s.away, l.Name)
	}
	if c != nil && l.MTU > c.room {
		s.drop(c)
		c = nil
	}
	if c == nil {
		return s.begin(l, warning)
	}
	half, err := configure(d, l)
	if err != nil {
		return Refused, "", err
	}
	if c.link != *l {
		was := c.link
		c.link = *l
		if err := s.hub.Change(c.Device, l.tunnel()); err != nil {
			// Two links may exchange their tunnels, so this one is dropped and starts again.
			s.drop(c)
			s.wakeUp()
			return Refused, "", err
		}
		if was.Remote != l.Remote {
			s.log.WithFields(logrus.Fields{"interface": l.Name, "from": was.Remote, "to": l.Remote}).Info(
				"gateway has moved")
		}
	}
	return Carried, cmp.Or(half, warning), nil
}

// A carrier is the device of a link.
type carrier struct {
	*carry.Device
	link  Link // as carried
	index int  // of the device
	room  int  // bytes of the largest packet that can be read
}

// gone reports whether the device is no longer read: it is deleted, or others have raised its MTU.
func (c *carrier) gone() bool {
	select {
	case <-c.Ended():
		return true
	default:
		return false
	}
}

// begin creates or adopts a device, which then outlives this process, and starts carrying its
// packets.
func (s *Set) begin(l *Link, warning string) (State, string, error) {
	d, err := s.hub.Add(l.Name, l.MTU, l.MTU, l.tunnel())
	if err != nil {
		return Refused, "", fmt.Errorf("links: %w", err)
	}
	made, err := netlink.LinkByName(l.Name)
	if err == nil {
		err = rtnl.KeepTUN(d.File(), l.Name, Group, true)
	}
	half := ""
	if err == nil {
		half, err = configure(made, l)
	}
	if err != nil {
		s.hub.Drop(d)
		return Refused, "", err
	}
	s.carriers[l.Name] = &carrier{d, *l, made.Attrs().Index, l.MTU}
	s.log.WithFields(logrus.Fields{"interface": l.Name, "vni": l.VNI, "remote": l.Remote, "mtu": l.MTU}).
		Info("link is up")
	return Carried, cmp.Or(half, warning), nil
}

// drop stops carrying the packets of a device. The device stays.
func (s *Set) drop(c *carrier) {
	s.hub.Drop(c.Device)
	delete(s.carriers, c.Name)
}

// prune removes devices of this package that are not desired.
func (s *Set) prune(names map[string]bool) {
	devices, err := own()
	for _, d := range devices {
		if name := d.Attrs().Name; !names[name] {
			if e := s.remove(d); e != nil {
				err = errors.Join(err, e)
				continue
			}
			s.log.WithField("interface", name).Info("link is removed")
		}
	}
	if s.staying.Changed(err) && err != nil {
		s.log.WithError(err).Warn("devices that are no longer wanted stay; trying again")
	}
	maps.DeleteFunc(s.away, func(name string, _ time.Time) bool { return !names[name] })
}

// kernelGeneve reports whether the kernel has Geneve links. It asks at most once per probePause.
func (s *Set) kernelGeneve(now time.Time) bool {
	if s.probed.IsZero() || now.Sub(s.probed) >= probePause {
		s.hasKern, s.probed = s.kernel(), now
	}
	return s.hasKern
}
