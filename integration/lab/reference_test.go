package lab

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
	"culvert/integration/need"
)

// TestReferenceLeavesNothing runs a reference gateway in a namespace of its own
// and looks at what is there before, during and after.
func TestReferenceLeavesNothing(t *testing.T) {
	need.Namespace(t)
	need.Kernel(t, "nft", MissingForReference())
	l := &Lab{Dir: t.TempDir(), options: Standard("vxlan", true)}
	need.NoError(t, l.writeConfigs())
	h, err := netns.New("reference", plan.V4[0].Gateway)
	need.NoError(t, err)
	t.Cleanup(h.Close)
	file := l.path("rome", "gateway.yaml")
	before := inventory(t, h)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.Do(func() error { return RunReference(ctx, file) }) }()
	limit := time.After(startTimeout)
	for referenceReady(ctx, h) != nil {
		select {
		case err := <-ended:
			t.Fatal("ended at once:", err)
		case <-limit:
			t.Fatal("no nftables table after", startTimeout)
		case <-time.After(step.Poll):
		}
	}
	during := inventory(t, h)
	for _, want := range []string{"link wg0", "link node1", "link node2", "route 10.0.2.0/24", "rule node1",
		"ip_forward 1"} {
		if !strings.Contains(during, want) {
			t.Errorf("no %q in\n%s", want, during)
		}
	}
	cancel()
	need.NoError(t, <-ended)
	if after := inventory(t, h); after != before {
		t.Errorf("left behind:\n%s\nwant:\n%s", after, before)
	}
	if referenceReady(t.Context(), h) == nil {
		t.Error("the nftables table is still there")
	}
}

// inventory lists what a reference gateway makes or changes.
func inventory(t *testing.T, h *netns.Host) string {
	t.Helper()
	var b strings.Builder
	err := h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			b.WriteString("link " + l.Attrs().Name + "\n")
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range routes {
			b.WriteString("route " + r.Dst.String() + "\n")
		}
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, r := range rules {
			b.WriteString("rule " + r.IifName + "\n")
		}
		for _, name := range []string{"ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"} {
			text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
			if err != nil {
				return err
			}
			b.WriteString(name + " " + string(text))
		}
		return nil
	})
	need.NoError(t, err)
	return b.String()
}
