package gather

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// someAddr returns a random address: of a class, of the Internet, or of IPv6.
func someAddr(random *rand.Rand) netip.Addr {
	kind := random.IntN(4)
	if kind == 3 {
		b := [16]byte{0x20, 0x01, 0x0d, byte(random.IntN(4))}
		for i := 8; i < 16; i++ {
			b[i] = byte(random.IntN(3)) << random.IntN(8)
		}
		return netip.AddrFrom16(b)
	}
	b := [4]byte{10, byte(random.IntN(4)), byte(random.IntN(256)), byte(random.IntN(256))}
	switch kind {
	case 1:
		b = [4]byte{192, 168, b[2], b[3]}
	case 2:
		b[0] = byte(11 + random.IntN(110))
	}
	return netip.AddrFrom4(b)
}

func common(a, b netip.Addr) int {
	for n := a.BitLen(); ; n-- {
		if netip.PrefixFrom(a, n).Contains(b) {
			return n
		}
	}
}

// TestPseudonymsKeepPrefixes: pseudonyms have as many leading bits in common as addresses, so no
// two are the same and each is in the pseudonyms of exactly the prefixes that its address is in. An
// address of a class stays there.
func TestPseudonymsKeepPrefixes(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, 0))
	p := withKey([32]byte{seed})
	changed := 0
	for range 2000 {
		a, b := someAddr(random), someAddr(random)
		x, y := p.Addr(a), p.Addr(b)
		if x != a {
			changed++
		}
		if x.BitLen() != a.BitLen() || a.BitLen() == b.BitLen() && common(a, b) != common(x, y) {
			t.Fatalf("seed %d: %v and %v become %v and %v", seed, a, b, x, y)
		}
		bits := random.IntN(b.BitLen() + 1)
		prefix := netip.PrefixFrom(b, bits)
		mapped := p.Prefix(prefix)
		if mapped.Bits() != bits || mapped.Contains(x) != prefix.Contains(a) {
			t.Fatalf("seed %d: %v in %v, but %v in %v: not the same", seed, a, prefix, x, mapped)
		}
		if masked := p.Prefix(prefix.Masked()); masked != mapped.Masked() {
			t.Fatalf("seed %d: %v becomes %v, and masked %v", seed, prefix, mapped, masked)
		}
		for _, c := range classes {
			if c.Contains(a) != c.Contains(x) {
				t.Fatalf("seed %d: %v becomes %v, of another class", seed, a, x)
			}
		}
	}
	if changed < 1900 {
		t.Errorf("only %d addresses have changed", changed)
	}
	if other := withKey([32]byte{seed + 1}); other.Addr(someAddr(random)) == p.Addr(someAddr(random)) ||
		other.Name("rome") == p.Name("rome") {
		t.Error("another key makes the same pseudonyms")
	}
}

// TestPseudonymsOfText: addresses of each form are replaced, and what tells nothing stays.
func TestPseudonymsOfText(t *testing.T) {
	p := withKey([32]byte{1})
	s := &scrubber{names: p, public: map[string]bool{"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=": true}}
	for _, name := range []string{"rome-1", "milan", "Admin@Rome"} {
		p.learn(name)
	}
	addr := func(text string) string { return p.Addr(netip.MustParseAddr(text)).String() }
	for text, want := range map[string]string{
		"":                                  "",
		"all is well, 3 of 4, v1.2.3":       "all is well, 3 of 4, v1.2.3",
		"0.0.0.0/0 ::/0 127.0.0.1 ::1":      "0.0.0.0/0 ::/0 127.0.0.1 ::1",
		"to 10.0.1.5:443.":                  "to " + addr("10.0.1.5") + ":443.",
		"at 2001:db8::7: refused":           "at " + addr("2001:db8::7") + ": refused",
		"at [2001:db8::7]:51840":            "at [" + addr("2001:db8::7") + "]:51840",
		"src=10.0.1.5->10.0.1.6":            "src=" + addr("10.0.1.5") + "->" + addr("10.0.1.6"),
		"in 10.0.1.0/24":                    "in " + p.Prefix(netip.MustParsePrefix("10.0.1.0/24")).String(),
		"::ffff:10.0.1.5":                   "::ffff:" + addr("10.0.1.5"),
		"at 15:04:05.123 UTC":               "at 15:04:05.123 UTC",
		"milan is silent, (rome-1) ROME-1":  p.Name("milan") + " is silent, (" + p.Name("rome-1") + ") " + p.Name("rome-1"),
		"milano and rome-12 are others":     "milano and rome-12 are others",
		"culvert-milan, of admin@rome":      "culvert-" + p.Name("milan") + ", of " + p.Name("admin@rome"),
		"spec.remote.podCIDRs is missing":   "spec.remote.podCIDRs is missing",
		"Peering/culvert/turin is refused":  "Peering/culvert/" + p.Name("turin") + " is refused",
		"lookup api.rome.example: no host":  "lookup " + p.Name("api.rome.example") + ": no host",
		"User \"alice\" may not \"get\" it": "User \"" + p.Name("alice") + "\" may not \"get\" it",
		"/home/alice/rome.key":              "/home/" + p.Name("alice") + "/" + p.Name("rome.key"),
		"from 0a:58:0a:f4:01:05":            "from " + p.Name("0a:58:0a:f4:01:05"),
		"key xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=": "key " +
			p.pseudonym("key-", "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="),
		"key TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=": "key (hidden)",
	} {
		if got := s.text(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}
