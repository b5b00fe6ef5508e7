package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func newPlan(t *testing.T, pools string, taken ...string) *Plan {
	t.Helper()
	var ps []netip.Prefix
	for p := range strings.FieldsSeq(pools) {
		ps = append(ps, cidr(p))
	}
	var ts []Taken
	for _, p := range taken {
		ts = append(ts, Taken{Name: "taken " + p, Prefix: cidr(p)})
	}
	plan, err := NewPlan(ps, ts)
	need.NoError(t, err)
	return plan
}

// TestLiqosRemaps: the same requests in the same order get the networks that a Liqo control plane
// (main at 557c199cf, and v1.2.0) gave to two remote clusters.
func TestLiqosRemaps(t *testing.T) {
	local := newPlan(t, "",
		"10.244.0.0/16", // pod-cidr
		"10.96.0.0/16",  // service-cidr
		"10.70.0.0/16",  // external-cidr
		"10.80.0.0/16",  // internal-cidr
		"192.0.2.0/24")  // reserved
	var l Ledger
	for _, tt := range []struct {
		peer       string
		kind       Kind
		cidr, want string
	}{
		{"cluster-b", Pod, "10.244.0.0/16", "10.71.0.0/16"},
		{"cluster-b", External, "10.70.0.0/16", "10.68.0.0/16"},
		{"cluster-c", Pod, "10.245.0.0/16", "10.245.0.0/16"},
		{"cluster-c", External, "10.71.0.0/16", "10.69.0.0/16"},
	} {
		got, err := l.Network(local, Owner{tt.peer, tt.kind, tt.cidr}, cidr(tt.cidr), noon)
		if err != nil || got != cidr(tt.want) {
			t.Errorf("%s %s %s: %s, %v; Liqo gave %s", tt.peer, tt.kind, tt.cidr, got, err, tt.want)
		}
	}
}

// TestAddresses: a released address rests until all others were given; U, the broadcast
// address and what the configuration holds never come.
func TestAddresses(t *testing.T) {
	plan := newPlan(t, "", "10.70.0.0/29", "10.70.0.3/32")
	var l Ledger
	give := func(name, want string) {
		t.Helper()
		got, err := l.Address(plan, Owner{"milan", Service, name}, cidr("10.70.0.0/29"), noon)
		if want == "" {
			if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(),
				"10.70.0.0/29, which has none free; peer milan holds most, 62.5 %") {
				t.Errorf("%s: %s, %v", name, got, err)
			}
			return
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	give("a", "10.70.0.1")
	give("b", "10.70.0.2")
	give("c", "10.70.0.4")
	give("b", "10.70.0.2")
	need.NoError(t, l.Release(Owner{"milan", Service, "a"}))
	give("d", "10.70.0.5")
	give("e", "10.70.0.6")
	give("f", "10.70.0.1")
	give("g", "")
	if err := l.Release(Owner{"milan", Service, "g"}); !errors.Is(err, ErrNotGiven) {
		t.Errorf("release of what was never given: %v", err)
	}
	if err := l.ReleasePeer("paris"); !errors.Is(err, ErrNotGiven) {
		t.Errorf("release of a peer that has nothing: %v", err)
	}
	if n := len(l.Entries()); n != 5 {
		t.Errorf("%d entries, want 5", n)
	}
}

// TestRefusals: what cannot be given says why and what to do, and changes nothing.
func TestRefusals(t *testing.T) {
	full := Ledger{}
	for i := range 48 {
		c := fmt.Sprintf("172.16.%d.0/24", i)
		if _, err := full.Network(newPlan(t, "10.9.0.0/18"), Owner{"paris", Pod, c}, cidr(c), noon); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		plan  *Plan
		owner Owner
		wish  string
		want  []string
	}{
		{"no room", newPlan(t, "10.9.0.0/18", "10.9.48.0/22"), Owner{"milan", Pod, "10.0.0.0/19"}, "10.0.0.0/19",
			[]string{"milan pod 10.0.0.0/19 needs a free /19 in 10.9.0.0/18", "the largest free block is a /21",
				"peer paris holds most, 75.0 %", "add a pool to ipam.pools"}},
		{"longer than the pool", newPlan(t, "10.9.0.0/18"), Owner{"milan", Pod, "10.0.0.0/8"}, "10.0.0.0/8",
			[]string{"needs a free /8", "largest free block is a /20"}},
		{"empty pool that is too small", newPlan(t, "10.200.0.0/24"), Owner{"milan", Pod, "10.0.0.0/16"}, "10.0.0.0/16",
			[]string{"the largest free block is a /24; nothing in it is in use; add a pool"}},
		{"all taken", newPlan(t, "10.9.0.0/18", "10.0.0.0/8"), Owner{"milan", Pod, "10.0.0.0/24"}, "10.0.0.0/24",
			[]string{"nothing is free", "taken 10.0.0.0/8 (10.0.0.0/8) holds most, 100.0 %"}},
		{"IPv6 beyond the default pool", newPlan(t, "", "fd00::/16"), Owner{"milan", Pod, "fd00::/24"}, "fd00::/24",
			[]string{"milan pod fd00::/24 needs a free /24 in fd63:756c::/32", "the largest free block is a /32",
				"add a pool to ipam.pools"}},
		{"unequal length", newPlan(t, ""), Owner{"milan", Pod, "10.0.0.0/16"}, "10.0.0.0/17",
			[]string{"differ in length"}},
		{"other family", newPlan(t, ""), Owner{"milan", Pod, "10.0.0.0/16"}, "fd00::/16", []string{"1:1"}},
		{"host bits", newPlan(t, ""), Owner{"milan", Pod, "10.0.0.0/16"}, "10.0.0.1/16", []string{"host bits"}},
		{"no peer", newPlan(t, ""), Owner{"", Pod, "10.0.0.0/16"}, "10.0.0.0/16", []string{"peer: "}},
		{"a service", newPlan(t, ""), Owner{"milan", Service, "web"}, "10.0.0.0/16", []string{"milan service web"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := full
			got, err := l.Network(tt.plan, tt.owner, cidr(tt.wish), noon)
			if err == nil || len(l.given) != len(full.given) {
				t.Fatalf("got %s, %d entries", got, len(l.given))
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nwant %q in it", err, w)
				}
			}
		})
	}
}

// TestIPv6WithoutPool: a requested CIDR that overlaps nothing is given as it is, and another gets a
// unique local block; a pool of IPv6 does not replace the default pools of IPv4.
func TestIPv6WithoutPool(t *testing.T) {
	var l Ledger
	for _, tt := range []struct{ pools, wish, want string }{
		{"", "fd00:1::/48", "fd00:1::/48"},
		{"", "2001:db8::/48", "2001:db8::/48"},
		{"", "fd00:7::/48", "fd63:756c::/48"},
		{"", "fd00:7:0:1::/64", "fd63:756c:1::/64"},
		{"10.0.0.0/8", "fd00:7:1::/48", "fd63:756c:2::/48"},
		{"fd00:2::/32", "fd00:1::/64", "fd00:2::/64"},
		{"fd00:2::/32", "10.0.0.0/16", "10.0.0.0/16"},
		{"fd00:2::/32", "203.0.113.0/24", "10.1.0.0/24"},
	} {
		got, err := l.Network(newPlan(t, tt.pools, "fd00:7::/32"), Owner{"milan", Pod, tt.wish}, cidr(tt.wish), noon)
		if err != nil || got != cidr(tt.want) {
			t.Errorf("%s from pools %q: %s, %v; want %s", tt.wish, tt.pools, got, err, tt.want)
		}
	}
}

func TestBadPools(t *testing.T) {
	var many []netip.Prefix
	for i := range 65 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
	}
	for _, tt := range []struct {
		pools []netip.Prefix
		want  string
	}{
		{many, "ipam.pools: 65 pools; at most 64"},
		{[]netip.Prefix{cidr("10.0.0.0/8"), cidr("fd00::/8"), cidr("10.1.0.0/16")},
			"ipam.pools[2]: 10.1.0.0/16 overlaps ipam.pools[0]"},
		{[]netip.Prefix{cidr("10.0.0.1/8")}, "ipam.pools[0]: 10.0.0.1/8 "},
		{[]netip.Prefix{cidr("::ffff:10.0.0.0/104")}, "ipam.pools[0]: "},
	} {
		if _, err := NewPlan(tt.pools, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// TestConflicts: a configuration that contradicts what was given is refused; an overlap with a
// network of this machine is only a warning.
func TestConflicts(t *testing.T) {
	milan := Owner{"milan", Pod, "10.0.0.0/16"}
	web := Owner{"milan", Service, "web"}
	l := Ledger{release: "culvert ipam release --file f"}
	if _, err := l.Network(newPlan(t, ""), milan, cidr("10.71.0.0/16"), noon); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Address(newPlan(t, ""), web, cidr("10.70.0.0/16"), noon); err != nil {
		t.Fatal(err) // 10.70.0.1
	}
	for _, tt := range []struct {
		name  string
		taken Taken
		want  string // "" = none; ! = a warning
	}{
		{"nothing", Taken{Prefix: cidr("10.72.0.0/16")}, ""},
		{"a part", Taken{Name: "ipam.reserved[0]", Prefix: cidr("10.71.4.0/24")},
			"ipam.reserved[0]: overlap of 10.71.4.0/24 with 10.71.0.0/16, the remap of milan pod 10.0.0.0/16; change it, or give another remap: culvert ipam release --file f milan pod 10.0.0.0/16"},
		{"more than all", Taken{Name: "all", Prefix: cidr("10.64.0.0/10")},
			"all: overlap of 10.64.0.0/10 with 10.71.0.0/16"},
		{"its own", Taken{Prefix: cidr("10.71.0.0/16"), Owner: milan}, ""},
		{"another's", Taken{Name: "other", Prefix: cidr("10.71.0.0/16"), Owner: Owner{"milan", External,
			"10.0.0.0/16"}}, "other: overlap"},
		{"connected", Taken{Name: "eth0", Prefix: cidr("10.71.4.0/24"), Connected: true},
			"!eth0 (10.71.4.0/24) overlaps 10.71.0.0/16, the remap of milan pod 10.0.0.0/16, which stays"},
		{"the network of an address", Taken{Prefix: cidr("10.70.0.0/16")}, ""},
		{"an address", Taken{Name: "nat.addresses[0].external", Prefix: cidr("10.70.0.1/32")},
			"nat.addresses[0].external: overlap of 10.70.0.1/32 with 10.70.0.1, the remap of milan service web"},
		{"connected to the network of an address", Taken{Prefix: cidr("10.70.0.0/24"), Connected: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plan, err := NewPlan(nil, []Taken{tt.taken})
			need.NoError(t, err)
			warnings, err := l.Conflicts(plan)
			got := ""
			switch {
			case err != nil && errors.Is(err, ErrConflict):
				got = err.Error()
			case len(warnings) > 0:
				got = "!" + warnings[0]
			}
			if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
