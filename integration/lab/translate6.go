package lab

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
)

var ipv4Text = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)(/\d+|:\d*)?`)

// AsIPv6 replaces addresses of the IPv4 plan in a text by those of the IPv6 plan, including prefixes and ports: 10.0.1.5 becomes fd00:10:0:1::5, and
// 192.0.2.7:51840 becomes [2001:db8:c::7]:51840. inside selects the addresses of pods, of external CIDRs and of the ends of tunnels, outside all
// others. Other addresses stay.
func AsIPv6(text string, inside, outside bool) string {
	return ipv4Text.ReplaceAllStringFunc(text, func(found string) string {
		m := ipv4Text.FindStringSubmatch(found)
		a, b, c, d := m[1], m[2], m[3], m[4]
		var six string
		switch {
		case a == "10" && b == "80":
			six = "fd80::" + d
		case a == "11":
			six = "2001:db8:b::" + d
		case a == "10" && b == "0":
			six = "fd00:10:0:" + c + "::" + d
		case a == "10":
			six = "fd00:" + b + ":0:" + c + "::" + d
		case a == "172" && b == "18":
			six = "fd18:1::" + d
		case a == "172" && b == "19":
			six = "fd18:2::" + d
		case a == "192" && b == "0":
			six = "2001:db8:c::" + d
		case a == "198":
			six = "2001:db8:2::" + d
		case a == "203":
			six = "2001:db8:1::" + d
		}
		address, err := netip.ParseAddr(six)
		if isInside := a == "10"; err != nil || isInside && !inside || !isInside && !outside {
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
