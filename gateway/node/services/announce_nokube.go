//go:build nokube

package services

import (
	"context"
	"net/netip"

	"github.com/sirupsen/logrus"

	"culvert/gateway/configfile"
	"culvert/gateway/prometheus"
)

// An announcer announces nothing: this build is for the packet path of a gateway.
type announcer struct{}

func newAnnouncer(int, logrus.FieldLogger) *announcer { return &announcer{} }

func (*announcer) withdraw([]netip.Addr) error { return nil }

func (*announcer) leave() {}

func (*announcer) apply([]netip.Addr, []string) {}

func (*announcer) addresses() []string { return nil }

func (*announcer) metrics(*prometheus.Page, []string) {}

func (*Server) announce(context.Context) {}

func (*Config) readAnnounce(e *configfile.Errors, f *File) {
	if len(f.Announce)+len(f.AnnounceOn) > 0 {
		e.Add("services.announce", "this culvert was built with the tag nokube; build it without")
	}
}

func (*Config) validateAnnounce(*configfile.Errors) {}

func (*Config) answers() []netip.Addr { return nil }
