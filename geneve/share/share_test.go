package share

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// fill gives a user all that is free for it by the rule "of the free", and returns how much that
// is.
func fill(p *Pool[string], users ...string) (n int) {
	for p.OfFree(users...) {
		p.Take(1, users...)
		n++
	}
	return n
}

// TestOfFree: one user gets a half, and each later one a half of the rest. What is given back is
// free again.
func TestOfFree(t *testing.T) {
	p := New[string](64)
	for _, tt := range []struct {
		user string
		want int
	}{{"a", 32}, {"b", 16}, {"c", 8}, {"a", 0}} {
		if got := fill(p, tt.user); got != tt.want {
			t.Errorf("%s gets %d, want %d", tt.user, got, tt.want)
		}
	}
	p.Give(32, "a")
	if p.Used() != 24 || p.Free() != 40 || p.Held("a") != 0 || p.Size() != 64 {
		t.Errorf("%d used, %d free, a holds %d of %d", p.Used(), p.Free(), p.Held("a"), p.Size())
	}
	if got := fill(p, "c"); got != 16 { // 24 for c, 24 free
		t.Errorf("c gets %d more, want 16", got)
	}
}

// TestOfFreeTogether: n users that take turns get an (n+1)th part each.
func TestOfFreeTogether(t *testing.T) {
	p := New[int](1000)
	for took := true; took; {
		took = false
		for user := range 9 {
			if p.OfFree(user) {
				p.Take(1, user)
				took = true
			}
		}
	}
	for user := range 9 {
		if p.Held(user) != 100 {
			t.Errorf("user %d holds %d, want 100", user, p.Held(user))
		}
	}
}

// TestOfFreeGroup: a user gets a third alone, and its group a half.
func TestOfFreeGroup(t *testing.T) {
	p := New[string](60)
	if got := fill(p, "group", "one"); got != 20 {
		t.Errorf("one gets %d, want 20", got)
	}
	for i := range 26 {
		fill(p, "group", string(rune('A'+i)))
	}
	if got := p.Held("group"); got != 30 {
		t.Errorf("the group gets %d, want 30", got)
	}
	if !p.OfFree("elsewhere", "two") {
		t.Error("nothing is left for another group")
	}
	p.Give(20, "group", "one")
	if p.Held("group") != 10 || p.Held("one") != 0 {
		t.Errorf("the group holds %d and one %d, want 10 and 0", p.Held("group"), p.Held("one"))
	}
}

// TestEqualPart: a user alone gets everything. One that comes later takes from the one with most
// until both have the same.
func TestEqualPart(t *testing.T) {
	p := New[string](12)
	take := func(user string, n int) (victim string, ok bool) {
		for {
			v, free, fits := p.EqualPart(user, n)
			if !fits {
				return victim, false
			}
			if free {
				p.Take(n, user)
				return victim, true
			}
			victim = v
			p.Give(1, v)
		}
	}
	for range 12 {
		if _, ok := take("a", 1); !ok {
			t.Fatalf("a gets no more than %d", p.Held("a"))
		}
	}
	if _, ok := take("a", 1); ok {
		t.Error("a gets more than there is")
	}
	for range 6 {
		if victim, ok := take("b", 1); !ok || victim != "a" {
			t.Fatalf("b, which holds %d: from %q, %v", p.Held("b"), victim, ok)
		}
	}
	if _, ok := take("b", 1); ok {
		t.Error("b gets more than an equal part")
	}
	if _, ok := take("c", 5); ok {
		t.Error("c gets more than an equal part at once")
	}
	if _, ok := take("c", 4); !ok || p.Held("a")+p.Held("b") != 8 || p.Used() != 12 {
		t.Errorf("c gets %d beside %d and %d", p.Held("c"), p.Held("a"), p.Held("b"))
	}
}

// TestCounts: whatever is taken and given back, the sum of all users is what is in use, and it
// never exceeds the size.
func TestCounts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := New[int](50)
	for range 20000 {
		user, n := random.IntN(12), 1+random.IntN(4)
		switch victim, free, ok := p.EqualPart(user, n); {
		case random.IntN(3) == 0 && p.Held(user) > 0:
			p.Give(1, user)
		case !ok:
		case free:
			p.Take(n, user)
		case p.Held(victim)*len(p.held) < p.Used():
			t.Fatalf("the victim holds %d, less than the mean", p.Held(victim))
		default:
			p.Give(1, victim)
		}
		sum := 0
		for _, held := range p.held {
			if held <= 0 {
				t.Fatalf("a user without units is kept: %v", p.held)
			}
			sum += held
		}
		if sum != p.Used() || sum > p.Size() {
			t.Fatalf("users hold %d, %d of %d in use", sum, p.Used(), p.Size())
		}
	}
}

func TestSource(t *testing.T) {
	for _, tt := range []struct{ address, want string }{
		{"10.1.2.3", "10.1.2.3/32"},
		{"::ffff:10.1.2.3", "10.1.2.3/32"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"fe80::1%eth0", "fe80::/64"},
	} {
		if got := Source(netip.MustParseAddr(tt.address)); got.String() != tt.want {
			t.Errorf("%s: %v, want %s", tt.address, got, tt.want)
		}
	}
	if got := Source(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("no address: %v", got)
	}
}
