//go:build nokube

package announce

import (
	"context"
	"net/netip"

	"github.com/sirupsen/logrus"

	"culvert/gateway/prometheus"
)

// An Announcer announces nothing: this build is for the packet path of a gateway.
type Announcer struct{}

func New(int, logrus.FieldLogger) *Announcer { return &Announcer{} }

func (*Announcer) Withdraw([]netip.Addr) error { return nil }

func (*Announcer) Leave() {}

func (*Announcer) Apply([]netip.Addr, []string) {}

func (*Announcer) Addresses() []string { return nil }

func (*Announcer) WriteMetrics(*prometheus.Page, []string) {}

func (*Announcer) Run(context.Context, func()) {}
