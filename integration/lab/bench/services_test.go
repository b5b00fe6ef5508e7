package bench

import (
	"errors"
	"testing"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/netns/netnstest"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/reference"
	"culvert/integration/need"
)

// TestKubeProxyRules: the rules that stand for kube-proxy serve every port of the cluster address,
// and are gone afterwards.
func TestKubeProxyRules(t *testing.T) {
	l, e := twoPods(t)
	need.Kernel(t, "nft", reference.Missing())
	e.Target, e.Port = plan.V4[0].Served, benchPort
	const short = 100 * time.Millisecond
	n := l.Host("rome/node1")
	before := netnstest.Inventory(t, n)
	err := serving(t.Context(), l, &plan.V4[0], e, &lab.ReferenceGateway, func() error {
		if err := n.Do(func() error { return reference.NFT("list table ip kube-proxy\n") }); err != nil {
			t.Error(err)
		}
		need.Eventually(t, time.Minute, "connections by kube-proxy's rules", func() error {
			rate, err := e.MeasureDials(t.Context(), short, 5*short)
			if err == nil && rate == 0 {
				err = errors.New("none succeeded")
			}
			return err
		})
		return nil
	})
	need.NoError(t, err)
	if after := netnstest.Inventory(t, n); after != before {
		t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
	}
}
