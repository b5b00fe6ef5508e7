package lab

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/probe"
	"culvert/integration/need"
)

// buildOne makes the hosts of rome only, without gateway and node processes:
// its pods reach each other through the kernels of the two nodes, without NAT.
func buildOne(t *testing.T, offloads bool) *Lab {
	t.Helper()
	need.Namespace(t)
	l, err := BuildRome(t.TempDir(), Standard("", offloads))
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	need.NoError(t, err)
	return l
}

// within is a pair of pods of one cluster.
func within(l *Lab, from, to string) *probe.Ends {
	e := &probe.Ends{From: l.Host(from), To: l.Host(to)}
	e.Target, e.WantSource = e.To.Address, e.From.Address
	return e
}

// TestChecksPass runs the checks' own code over plain kernel routing.
func TestChecksPass(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		l := buildOne(t, offloads)
		e := within(l, "rome/pod1", "rome/pod2")
		client := within(l, "rome/client", "rome/node2")
		hops := []netip.Addr{plan.V4[0].Nodes[0].PodCIDR.Addr(), plan.V4[0].Nodes[1].Underlay, e.Target}
		for name, check := range map[string]func(context.Context) (string, error){
			"ping":   e.CheckPing,
			"client": client.CheckPing,
			"udp":    e.CheckUDP,
			"trains": e.CheckTrains,
			"up":     func(ctx context.Context) (string, error) { return e.CheckStream(ctx, 3<<20+1, 0) },
			"down":   func(ctx context.Context) (string, error) { return e.CheckStream(ctx, 0, 3<<20+1) },
			"both":   func(ctx context.Context) (string, error) { return e.CheckStream(ctx, 1<<20, 2<<20) },
			"trace": func(ctx context.Context) (string, error) {
				return probe.CheckTrace(ctx, e.From, e.Target,
					hops)
			},
			"underlay": func(ctx context.Context) (string, error) {
				return probe.CheckInternal(client.To, plan.V4[0].Gateway)
			},
		} {
			if figure, err := check(t.Context()); err != nil {
				t.Errorf("offloads %v, %s: %v", offloads, name, err)
			} else {
				t.Logf("offloads %v, %s: %s", offloads, name, figure)
			}
		}
	}
}

// TestChecksFail breaks what each check promises.
func TestChecksFail(t *testing.T) {
	l := buildOne(t, true)
	e := within(l, "rome/pod1", "rome/pod2")
	masked := *e
	masked.WantSource = netip.MustParseAddr("10.62.1.5")
	hops := []netip.Addr{plan.V4[0].Nodes[0].PodCIDR.Addr(), plan.V4[0].Nodes[0].Underlay, e.Target}
	for _, test := range []struct {
		name  string
		check func(context.Context) (string, error)
		want  string
	}{
		{"ping, source", masked.CheckPing, "rome/pod2 saw source 10.0.1.5, want 10.62.1.5"},
		{"udp, source", masked.CheckUDP, "want 40 from 10.62.1.5"},
		{"trains, source", masked.CheckTrains, "rome/pod2 saw source 10.0.1.5, want 10.62.1.5"},
		{"stream, source", func(ctx context.Context) (string, error) { return masked.CheckStream(ctx, 1000, 1000) },
			"rome/pod2 saw source 10.0.1.5, want 10.62.1.5"},
		{"trace, hops", func(ctx context.Context) (string, error) {
			return probe.CheckTrace(ctx, e.From, e.Target,
				hops)
		}, "hops [10.0.1.1 172.18.0.3 10.0.2.6], want [10.0.1.1 172.18.0.2 10.0.2.6]"},
		{"too big, never comes", func(ctx context.Context) (string, error) { return e.CheckTooBig(ctx, e.Target) },
			"no too-big message"},
		{"segments, never shrink", func(ctx context.Context) (string, error) {
			return e.CheckSegments(ctx, streamBytes,
				false)
		}, "segments of 1288 bytes at first and 1288 at last"},
	} {
		figure, err := test.check(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, %v; want %q", test.name, figure, err, test.want)
		}
	}
}

// TestMTUChecks has a small MTU between the nodes, as the far gateway has.
func TestMTUChecks(t *testing.T) {
	l := buildOne(t, true)
	for _, node := range []string{"rome/node1", "rome/node2"} {
		need.NoError(t, l.Host(node).Do(func() error { return netns.SetMTU("eth0", probe.SmallMTU) }))
	}
	e, back := within(l, "rome/pod1", "rome/pod2"), within(l, "rome/pod2", "rome/pod1")
	if figure, err := e.CheckFragments(t.Context()); err != nil {
		t.Error(figure, err)
	}
	// only pod1 learns of the small MTU
	if figure, err := e.CheckSegments(t.Context(), streamBytes, false); err != nil {
		t.Error(figure, err)
	}
	if figure, err := back.CheckTooBig(t.Context(), plan.V4[0].Nodes[1].PodCIDR.Addr()); err != nil {
		t.Error(figure, err)
	}
	// A router that speaks from another address than expected.
	if figure, err := within(l, "rome/pod1", "rome/client").CheckTooBig(t.Context(),
		plan.V4[0].Internal); err == nil ||
		!strings.Contains(err.Error(), "too-big message from 10.0.1.1 with MTU 1280, want 10.80.0.4 with 1280") {
		t.Error(figure, err)
	}
}
