package lab

import (
	"errors"
	"testing"
	"time"

	"culvert/integration/lab/plan"
	"culvert/integration/need"
)

// TestKubeProxyRules: the rules that stand for kube-proxy serve every port of the cluster address,
// and are gone afterwards.
func TestKubeProxyRules(t *testing.T) {
	l := buildOne(t, true)
	need.Kernel(t, "nft", MissingForReference())
	e := within(l, "rome/pod1", "rome/pod2")
	e.Target, e.Port = plan.V4[0].Served, benchPort
	const short = 100 * time.Millisecond
	n := l.Host("rome/node1")
	before := inventory(t, n)
	err := l.serving(t.Context(), &plan.V4[0], e, &referenceAsIs, func() error {
		if err := n.Do(func() error { return nft("list table ip kube-proxy\n") }); err != nil {
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
	if after := inventory(t, n); after != before {
		t.Errorf("left behind:\n%s\nthere was:\n%s", after, before)
	}
}
