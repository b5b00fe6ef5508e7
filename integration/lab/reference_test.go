package lab

import (
	"context"
	"strings"
	"testing"
	"time"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/netns/netnstest"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/reference"
	"culvert/integration/lab/step"
	"culvert/integration/need"
)

// TestReferenceLeavesNothing runs a reference gateway in a namespace of its own
// and looks at what is there before, during and after.
func TestReferenceLeavesNothing(t *testing.T) {
	need.Namespace(t)
	need.Kernel(t, "nft", reference.Missing())
	l := &Lab{Dir: t.TempDir(), Options: Standard("vxlan", true)}
	need.NoError(t, l.WriteConfigs())
	h, err := netns.New("reference", plan.V4[0].Gateway)
	need.NoError(t, err)
	t.Cleanup(h.Close)
	file := l.Path("rome", "gateway.yaml")
	before := netnstest.Inventory(t, h)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.Do(func() error { return reference.Run(ctx, file) }) }()
	limit := time.After(StartTimeout)
	for referenceReady(ctx, h) != nil {
		select {
		case err := <-ended:
			t.Fatal("ended at once:", err)
		case <-limit:
			t.Fatal("no nftables table after", StartTimeout)
		case <-time.After(step.Poll):
		}
	}
	during := netnstest.Inventory(t, h)
	for _, want := range []string{"link wg0", "link node1", "link node2", "route 10.0.2.0/24", "rule node1",
		"ip_forward 1"} {
		if !strings.Contains(during, want) {
			t.Errorf("no %q in\n%s", want, during)
		}
	}
	cancel()
	need.NoError(t, <-ended)
	if after := netnstest.Inventory(t, h); after != before {
		t.Errorf("left behind:\n%s\nwant:\n%s", after, before)
	}
	if referenceReady(t.Context(), h) == nil {
		t.Error("the nftables table is still there")
	}
}
