package gather

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Pseudonyms are what stands in an archive for addresses and names. One key makes the same ones.
type Pseudonyms struct {
	key       [32]byte
	addresses map[netip.Addr]netip.Addr
	names     map[string][]string // those that were found, in lower case, longest first, by their first bytes
	known     map[string]bool
}

// NewPseudonyms returns Pseudonyms with a random key.
func NewPseudonyms() *Pseudonyms {
	var key [32]byte
	rand.Read(key[:]) // never fails (crypto/rand)
	return withKey(key)
}

func withKey(key [32]byte) *Pseudonyms {
	return &Pseudonyms{key, map[netip.Addr]netip.Addr{}, map[string][]string{}, map[string]bool{}}
}

// unchanged are addresses that tell nothing; classes are ranges whose addresses stay inside,
// because what an address may do depends on them.
var (
	unchanged = prefixes("0.0.0.0/8", "127.0.0.0/8", "255.255.255.255/32", "::/127")
	classes   = prefixes("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4",
		"240.0.0.0/4", "fc00::/7", "fe80::/10", "ff00::/8")
)

func prefixes(all ...string) (list []netip.Prefix) {
	for _, text := range all {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// Addr returns the pseudonym of an address. Two addresses have as many leading bits in common as
// their pseudonyms: each bit is flipped or not by the bits before it, as Crypto-PAn does (Xu, Fan,
// Ammar, Moon: Prefix-Preserving IP Address Anonymization, 2002).
func (p *Pseudonyms) Addr(a netip.Addr) netip.Addr {
	if a.Zone() != "" {
		return p.Addr(a.WithZone("")).WithZone(p.Name(a.Zone()))
	}
	if a.Is4In6() {
		four := p.Addr(a.Unmap()).As4()
		return netip.AddrFrom16(netip.AddrFrom4(four).As16())
	}
	if b, ok := p.addresses[a]; ok || !a.IsValid() {
		return b
	}
	out := a.AsSlice()
	for i := range a.BitLen() {
		if p.flips(netip.PrefixFrom(a, i).Masked()) {
			out[i/8] ^= 0x80 >> (i % 8)
		}
	}
	b, _ := netip.AddrFromSlice(out)
	p.addresses[a] = b
	return b
}

// flips reports whether the bit behind a prefix is flipped.
func (p *Pseudonyms) flips(before netip.Prefix) bool {
	for _, u := range unchanged {
		if before.Overlaps(u) {
			return false
		}
	}
	for _, c := range classes {
		if before.Bits() < c.Bits() && before.Overlaps(c) {
			return false
		}
	}
	text, _ := before.MarshalBinary()
	return p.sum(string(text))[0]&1 == 1
}

func (p *Pseudonyms) sum(text string) []byte {
	h := hmac.New(sha256.New, p.key[:])
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Prefix returns the pseudonym of a prefix, which has its length and contains the pseudonyms of its
// addresses.
func (p *Pseudonyms) Prefix(x netip.Prefix) netip.Prefix {
	mapped := netip.PrefixFrom(p.Addr(x.Addr()), x.Bits())
	if x == x.Masked() {
		return mapped.Masked()
	}
	return mapped
}

// Name returns the pseudonym of a text that is a name as a whole.
func (p *Pseudonyms) Name(name string) string { return p.pseudonym("name-", name) }

var letters = base32.StdEncoding.WithPadding(base32.NoPadding)

func (p *Pseudonyms) pseudonym(kind, of string) string {
	return kind + strings.ToLower(letters.EncodeToString(p.sum(kind + toLower(of))[:5]))
}

// address returns the pseudonym of a text that is an address, a prefix, or an address with a port.
func (p *Pseudonyms) address(text string) (string, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		return p.Addr(a).String(), true
	}
	if x, err := netip.ParsePrefix(text); err == nil {
		return p.Prefix(x).String(), true
	}
	if x, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(p.Addr(x.Addr()), x.Port()).String(), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil {
			return "[" + p.Addr(a).String() + "]", true
		}
	}
	return "", false
}

// learn notes a name, so that Text finds it in sentences.
func (p *Pseudonyms) learn(name string) {
	name = toLower(name)
	if len(name) < minName || p.known[name] || !wordy(name[0]) && name[0] < utf8.RuneSelf {
		return
	}
	p.known[name] = true
	list := p.names[name[:minName]]
	at := 0
	for at < len(list) && len(list[at]) >= len(name) {
		at++
	}
	p.names[name[:minName]] = append(list[:at], append([]string{name}, list[at:]...)...)
}

// minName is the length of the shortest name that is looked for in sentences.
const minName = 2

// wordy reports whether a byte belongs to a word: a name ends where a word does.
func wordy(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf
}

// replace replaces the names that were learned.
func (p *Pseudonyms) replace(text string) string {
	lower := toLower(text)
	var out strings.Builder
	kept := 0
	for i := 0; i+minName <= len(lower); i++ {
		if i > 0 && wordy(lower[i-1]) || !wordy(lower[i]) {
			continue
		}
		for _, name := range p.names[lower[i:i+minName]] {
			end := i + len(name)
			if strings.HasPrefix(lower[i:], name) && (end == len(lower) || !wordy(lower[end]) || !wordy(lower[end-1])) {
				out.WriteString(text[kept:i] + p.Name(name))
				kept, i = end, end-1
				break
			}
		}
	}
	return out.String() + text[kept:]
}

// toLower leaves letters outside ASCII, which may have another length in lower case.
func toLower(text string) string {
	lower := []byte(text)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] += 'a' - 'A'
		}
	}
	return string(lower)
}

// value returns the pseudonym of a text that is a name, or names separated by slashes or by a colon
// before a port. found is called with each name.
func (p *Pseudonyms) value(text string, found func(string)) string {
	if plain(text) {
		return text
	}
	if mapped, ok := p.address(text); ok {
		return mapped
	}
	if key.FindString(text) == text {
		return p.pseudonym("key-", text)
	}
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		return scheme + "://" + p.value(rest, found)
	}
	if strings.Contains(text, "/") && !strings.ContainsAny(text, " \t\n") {
		parts := strings.Split(text, "/")
		for i, part := range parts {
			if i > 0 || !isKind(part) {
				parts[i] = p.value(part, found)
			}
		}
		return strings.Join(parts, "/")
	}
	if host, port, err := net.SplitHostPort(text); err == nil && host != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return p.value(host, found) + ":" + port
		}
	}
	if rest, ok := strings.CutPrefix(text, "culvert-"); ok {
		return "culvert-" + p.value(rest, found)
	}
	found(text)
	return p.Name(text)
}
