// Package siphash is SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012)
// of 64-bit words: for choices that a sender can watch but must not be able to steer.
package siphash

import (
	"encoding/binary"
	"math/bits"
)

// A Key keys the hash. The zero Key gives a hash that everybody can compute.
type Key struct{ k0, k1 uint64 }

// NewKey returns the Key of 16 bytes.
func NewKey(key [16]byte) Key {
	return Key{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

// Sum returns the hash of the words as little-endian bytes.
func (k Key) Sum(words ...uint64) uint64 {
	v := [4]uint64{k.k0 ^ 0x736f6d6570736575, k.k1 ^ 0x646f72616e646f6d, k.k0 ^ 0x6c7967656e657261,
		k.k1 ^ 0x7465646279746573}
	for _, m := range words {
		v[3] ^= m
		round(&v)
		round(&v)
		v[0] ^= m
	}
	last := uint64(len(words)*8) << 56
	v[3] ^= last
	round(&v)
	round(&v)
	v[0] ^= last
	v[2] ^= 0xff
	for range 4 {
		round(&v)
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func round(v *[4]uint64) {
	v[0] += v[1]
	v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
	v[0] = bits.RotateLeft64(v[0], 32)
	v[2] += v[3]
	v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
	v[0] += v[3]
	v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
	v[2] += v[1]
	v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
	v[2] = bits.RotateLeft64(v[2], 32)
}
