package integration

import (
	"os"
	"testing"

	"culvert/integration/lab"
)

// peerFamily says which addresses of a peer test are of IPv6. The tests write all of them as of IPv4; hosts of another family replace them
// in what they are told. The zero value replaces none.
type peerFamily struct {
	inside  bool // those of pods and of the ends of tunnels
	outside bool // those that tunnels run over
}

// onlyIPv6Peers have no address of IPv4.
var onlyIPv6Peers = peerFamily{inside: true, outside: true}

func (f peerFamily) String() string {
	names := map[bool]string{false: "IPv4", true: "IPv6"}
	return names[f.inside] + " over " + names[f.outside]
}

// of returns a text with the addresses of the family.
func (f peerFamily) of(text string) string { return lab.AsIPv6(text, f.inside, f.outside) }

// amount is n bytes, or a part of them where a guest carries what it carries over IPv4 too, unless there is time.
func (f peerFamily) amount(n int) int {
	if f.inside && os.Getenv(longEnv) == "" {
		return n / 4
	}
	return n
}

// all is of for each of several texts.
func (f peerFamily) all(texts []string) []string {
	replaced := make([]string, len(texts))
	for i, text := range texts {
		replaced[i] = f.of(text)
	}
	return replaced
}

// besideFamilies is beside for a test that is the same over IPv4 and over IPv6.
func besideFamilies(t *testing.T, body func(*testing.T, peerFamily), probes ...probe) {
	for _, f := range []peerFamily{{}, onlyIPv6Peers} {
		t.Run(f.String(), func(t *testing.T) {
			beside(t, func(t *testing.T) { body(t, f) }, probes...)
		})
	}
}
