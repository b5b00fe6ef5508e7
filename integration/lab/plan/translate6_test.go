package plan

import (
	"fmt"
	"testing"
)

// TestAsIPv6: the plan of IPv6 has no IPv4 address left, and texts are translated inside, outside,
// or both.
func TestAsIPv6(t *testing.T) {
	const milan = "{milan server fd18:2::1/64 2001:db8:2::1/64 2001:db8:2::10 2001:db8:2::20 fd00:70:0:3::9 fd18:2::100 fd18:2::9 fd80::4 2001:db8:c::7/64 " +
		"fd00:10::/48 fd00:70::/48 fd00:61::/48 fd00:71::/48 [{node1 101 fd18:2::2 fd80::2 fd00:10:0:1::1/64 pod1 fd00:10:0:1::5} " +
		"{node2 102 fd18:2::3 fd80::3 fd00:10:0:8000::1/49 pod2 fd00:10:0:8002::7}] 2001:db8:b::/64 2001:db8:b::7 2001:db8:b::8 " +
		"fd00:70::20 fd00:70::21 fd00:70::22 fd00:96::/44 fd00:96::10}"
	if got := fmt.Sprint(V6[1]); got != milan {
		t.Errorf("milan over IPv6:\n%s, want\n%s", got, milan)
	}
	if four := ipv4Text.FindString(fmt.Sprint(V6)); four != "" {
		t.Error("the plan of IPv6 has", four)
	}
	const text = `{"endpoint":"192.0.2.7:51840", "via": "10.80.0.4", "pods": ["10.0.8.0/21", "10.0.9.7/32"], "metrics": "127.0.0.1:8082"} from 192.0.2.1:`
	for _, tt := range []struct {
		inside, outside bool
		want            string
	}{
		{false, false, text},
		{true, false,
			`{"endpoint":"192.0.2.7:51840", "via": "fd80::4", "pods": ["fd00:10:0:8::/61", "fd00:10:0:9::7/128"], "metrics": "127.0.0.1:8082"} from 192.0.2.1:`},
		{false, true,
			`{"endpoint":"[2001:db8:c::7]:51840", "via": "10.80.0.4", "pods": ["10.0.8.0/21", "10.0.9.7/32"], "metrics": "127.0.0.1:8082"} from [2001:db8:c::1]:`},
	} {
		if got := AsIPv6(text, tt.inside, tt.outside); got != tt.want {
			t.Errorf("inside %v, outside %v: %s", tt.inside, tt.outside, got)
		}
	}
}
