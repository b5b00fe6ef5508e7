package integration

import (
	"os"
	"testing"

	labplan "culvert/integration/lab/plan"
)

// peerFamily says which addresses of a peer test are IPv6. Tests write all addresses as IPv4; hosts
// of another family translate them in everything they are told. The zero value translates none.
type peerFamily struct {
	inside  bool // those of pods and of tunnels' ends
	outside bool // those between which tunnels run
}

// onlyIPv6Peers have no IPv4 addresses.
var onlyIPv6Peers = peerFamily{inside: true, outside: true}

func (f peerFamily) String() string {
	names := map[bool]string{false: "IPv4", true: "IPv6"}
	return names[f.inside] + " over " + names[f.outside]
}

// of translates the addresses in a text to the family.
func (f peerFamily) of(text string) string { return labplan.AsIPv6(text, f.inside, f.outside) }

// amount returns n bytes, or less for a guest that carries the same over IPv4 too, except under
// CULVERT_LONG.
func (f peerFamily) amount(n int) int {
	if f.inside && os.Getenv(longEnv) == "" {
		return n / 4
	}
	return n
}

// all is of for several texts.
func (f peerFamily) all(texts []string) []string {
	replaced := make([]string, len(texts))
	for i, text := range texts {
		replaced[i] = f.of(text)
	}
	return replaced
}

// besideFamilies is beside for a test that runs over IPv4 and over IPv6.
func besideFamilies(t *testing.T, body func(*testing.T, peerFamily), probes ...probe) {
	for _, f := range []peerFamily{{}, onlyIPv6Peers} {
		t.Run(f.String(), func(t *testing.T) {
			beside(t, func(t *testing.T) { body(t, f) }, probes...)
		})
	}
}
