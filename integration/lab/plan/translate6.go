package plan

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var ipv4Text = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)(/\d+|:\d*)?`)

// translations are the networks of both plans. B, C and D are the second to the fourth number of
// the IPv4 address.
var translations = []struct{ four, six string }{
	{"10.80.", "fd80::D"}, {"10.0.", "fd00:10:0:C::D"}, {"10.", "fd00:B:0:C::D"}, {"11.", "2001:db8:b::D"},
	{"172.18.", "fd18:1::D"}, {"172.19.", "fd18:2::D"},
	{"192.0.", "2001:db8:c::D"}, {"198.", "2001:db8:2::D"}, {"203.", "2001:db8:1::D"},
}

// Text returns a text for p's family, with all addresses translated.
func (p *Plan) Text(four string) string { return AsIPv6(four, p.Is6(), p.Is6()) }

// AsIPv6 replaces addresses of the IPv4 plan in a text by those of the IPv6 plan, including
// prefixes and ports: 10.0.1.5 becomes fd00:10:0:1::5, and 192.0.2.7:51840 becomes
// [2001:db8:c::7]:51840. inside selects the addresses of pods, of external CIDRs and of the ends of
// tunnels, outside all others. Other addresses stay.
func AsIPv6(text string, inside, outside bool) string {
	return ipv4Text.ReplaceAllStringFunc(text, func(found string) string {
		m := ipv4Text.FindStringSubmatch(found)
		six := ""
		for _, t := range translations {
			if strings.HasPrefix(found, t.four) {
				six = strings.NewReplacer("B", m[2], "C", m[3], "D", m[4]).Replace(t.six)
				break
			}
		}
		address, err := netip.ParseAddr(six)
		if isInside := m[1] == "10"; err != nil || isInside && !inside || !isInside && !outside {
			return found
		}
		switch behind := m[5]; {
		case behind == "":
			return address.String()
		case behind[0] == ':':
			return "[" + address.String() + "]" + behind
		default:
			bits, _ := strconv.Atoi(behind[1:])
			switch { // two bytes of an IPv4 address are the first 48 bits, three are 64
			case bits <= 16:
				bits += 32
			case bits < 32:
				bits += 40
			default:
				bits = 128
			}
			return fmt.Sprintf("%s/%d", address, bits)
		}
	})
}
