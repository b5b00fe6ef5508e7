package terms

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// words writes the first bytes of a hash as six words that can be read out: each is 16 bits as a
// proquint (D. S. Wilkerson, A Proposal for Proquints: Identifiers that are Readable, Spellable,
// and Pronounceable, arXiv:0901.4016), consonants and vowels in turn. Finding another text with the
// same 96 bits takes as many attempts as breaking a key.
func words(text string) string {
	sum := sha256.Sum256([]byte(text))
	var all []string
	for i := range 6 {
		all = append(all, word(binary.BigEndian.Uint16(sum[2*i:])))
	}
	return strings.Join(all, " ")
}

func word(n uint16) string {
	const consonants, vowels = "bdfghjklmnprstvz", "aiou"
	return string([]byte{consonants[n>>12], vowels[n>>10&3], consonants[n>>6&15], vowels[n>>4&3], consonants[n&15]})
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
