package siphash

import "testing"

// The reference vectors of SipHash-2-4 for inputs of 0, 8, 16 and 40 bytes 00 01 02 …, with key 00
// … 0f.
func TestVectors(t *testing.T) {
	var key [16]byte
	for i := range key {
		key[i] = byte(i)
	}
	k := NewKey(key)
	words := []uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x1716151413121110, 0x1f1e1d1c1b1a1918,
		0x2726252423222120}
	for n, want := range map[int]uint64{0: 0x726fdb47dd0e0e31, 1: 0x93f5f5799a932462, 2: 0x3f2acc7f57c29bdb} {
		if got := k.Sum(words[:n]...); got != want {
			t.Errorf("%d words: %#x, want %#x", n, got, want)
		}
	}
}
