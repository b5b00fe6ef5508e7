//go:build !nokube

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/gateway/node/services/steer"
	"culvert/integration/need"
)

// A file lists the addresses for which its node answers: only load balancer addresses, and never
// the node's own.
func TestAnnounceFile(t *testing.T) {
	c, err := parse(t, "203.0.113.7", `203.0.113.7, 203.0.113.8, 203.0.113.9, "fd99::7"`, "serve:",
		"announce: [203.0.113.8/31, \"fd99::/64\"]\nannounceOn: [eth0]\nserve:")
	need.NoError(t, err)
	if want := addrs("203.0.113.8", "203.0.113.9", "fd99::7"); !slices.Equal(c.Answers, want) {
		t.Errorf("it answers for %v, want %v", c.Answers, want)
	}
	if !slices.Equal(c.AnnounceOn, []string{"eth0"}) {
		t.Errorf("at %v", c.AnnounceOn)
	}
	// The node also has the IPv6 address: before the local table, everything to it is routed to the
	// device.
	front := 0
	for _, s := range c.plan(c.Addresses, orphans{}).Front {
		if s.Protocol == 0 {
			front++
			if want := (steer.Match{To: netip.MustParsePrefix("fd99::7/128")}); s != want {
				t.Errorf("in front %v, want %v", s, want)
			}
		}
	}
	if front != 1 {
		t.Errorf("%d rules for all protocols", front)
	}
	// For IPv4 it has a route that ends with the process, although the device does not.
	if p := c.plan(c.Addresses, orphans{}); p.Answers || p.Answered != nil || !slices.Contains(p.Routes,
		netip.MustParsePrefix("203.0.113.8/32")) {
		t.Errorf("without a state folder it plans %v apart from %v", p.Answered, p.Routes)
	}
	c.State = "/run/culvert"
	p := c.plan(c.Addresses, orphans{})
	if want := []netip.Prefix{netip.MustParsePrefix("203.0.113.8/32"),
		netip.MustParsePrefix("203.0.113.9/32")}; !p.Answers || !slices.Equal(p.Answered, want) {
		t.Errorf("with a state folder it plans %v apart, want %v", p.Answered, want)
	}
	for _, r := range p.Routes {
		if slices.Contains(p.Answered, r) {
			t.Errorf("%s is planned twice", r)
		}
	}
	if _, err := parse(t, "203.0.113.7", "172.18.0.2", "serve:", "announce: [172.18.0.2/32]\nserve:"); err == nil ||
		!strings.Contains(err.Error(), "services.announce: 172.18.0.2 is one of services.addresses") {
		t.Errorf("the node's own address: %v", err)
	}
	var many []string
	for i := range MaxAnnounced + 1 {
		many = append(many, fmt.Sprintf("203.0.%d.%d", 112+i/256, i%256))
	}
	for _, n := range []int{MaxAnnounced, MaxAnnounced + 1} {
		c, err := parse(t, "203.0.113.7", strings.Join(many[:n], ", "), "serve:", "announce: [203.0.112.0/23]\nserve:")
		if refused := err != nil && strings.Contains(err.Error(),
			"services.announce: 257 addresses, and one node answers for 256 at most"); refused != (n > MaxAnnounced) ||
			len(c.Answers) != n {
			t.Errorf("%d addresses: %v", n, err)
		}
	}
	if c, err := parse(t); err != nil || c.Answers != nil {
		t.Errorf("without announce it answers for %v: %v", c.Answers, err)
	}
}

func addrs(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}
