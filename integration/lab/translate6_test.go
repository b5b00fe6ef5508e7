package lab

import (
	"fmt"
	"testing"
)

// TestAsIPv6: what is translated is what the IPv6 plan has.
func TestAsIPv6(t *testing.T) {
	for i := range clusters {
		four, six := &clusters[i], &clusters6[i]
		pairs := [][2]any{
			{four.Underlay, six.Underlay}, {four.Outside, six.Outside}, {four.Client, six.Client}, {four.Mapped, six.Mapped},
			{four.Gateway, six.Gateway}, {four.Internal, six.Internal}, {four.Peering, six.Peering}, {four.PodCIDR, six.PodCIDR},
			{four.External, six.External}, {four.SeenPods, six.SeenPods}, {four.SeenExt, six.SeenExt}, {four.Nodes[0].Pod, six.Nodes[0].Pod},
			{four.Nodes[0].PodCIDR, six.Nodes[0].PodCIDR}, {four.Balanced, six.Balanced}, {four.Sticky, six.Sticky}, {four.Strict, six.Strict},
		}
		for j := range four.Nodes {
			pairs = append(pairs, [2]any{four.Nodes[j].Underlay, six.Nodes[j].Underlay}, [2]any{four.Nodes[j].Internal, six.Nodes[j].Internal})
		}
		for _, p := range pairs {
			if got := AsIPv6(fmt.Sprint(p[0]), true, true); got != fmt.Sprint(p[1]) {
				t.Errorf("%s: %v becomes %s, want %v", four.Name, p[0], got, p[1])
			}
		}
	}
	const text = `{"endpoint":"192.0.2.7:51840", "via": "10.80.0.4", "pods": ["10.0.8.0/21", "10.0.9.7/32"], "metrics": "127.0.0.1:8082"} from 192.0.2.1:`
	for _, tt := range []struct {
		inside, outside bool
		want            string
	}{
		{false, false, text},
		{true, false, `{"endpoint":"192.0.2.7:51840", "via": "fd80::4", "pods": ["fd00:10:0:8::/61", "fd00:10:0:9::7/128"], "metrics": "127.0.0.1:8082"} from 192.0.2.1:`},
		{false, true, `{"endpoint":"[2001:db8:c::7]:51840", "via": "10.80.0.4", "pods": ["10.0.8.0/21", "10.0.9.7/32"], "metrics": "127.0.0.1:8082"} from [2001:db8:c::1]:`},
	} {
		if got := AsIPv6(text, tt.inside, tt.outside); got != tt.want {
			t.Errorf("inside %v, outside %v: %s", tt.inside, tt.outside, got)
		}
	}
}
