// Package wgkey reads, makes and hides the keys of WireGuard.
package wgkey

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
)

// Key is a Curve25519 key of WireGuard, private or public.
//
// It formats as "(hidden)" under every verb, so that no log line or error can show a private key by accident; Base64 returns the text.
type Key [32]byte

// errKey describes a key's format without quoting the input, which may be a secret.
var errKey = errors.New("not a WireGuard key; want 44 characters of base64 as wg(8) prints, or 32 raw bytes")

// Parse parses the base64 text of wg(8), with or without surrounding white space, or the 32 raw bytes in Liqo's Secrets. The all-zero key is no key.
func Parse(b []byte) (Key, error) {
	var k Key
	if len(b) == len(k) {
		copy(k[:], b)
	} else {
		raw, err := base64.StdEncoding.Strict().DecodeString(string(bytes.TrimSpace(b)))
		if err != nil || len(raw) != len(k) {
			return Key{}, errKey
		}
		copy(k[:], raw)
	}
	if k == (Key{}) {
		return Key{}, errKey
	}
	return k, nil
}

// NewPrivate returns a new random private key, clamped as by wg(8) (RFC 7748, Section 5).
func NewPrivate() Key {
	var k Key
	rand.Read(k[:]) // never fails (crypto/rand)
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

// Public returns the public key that belongs to the private key k.
func (k Key) Public() Key {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		panic(err) // unreachable: every 32 bytes are an X25519 private key
	}
	var public Key
	copy(public[:], private.PublicKey().Bytes())
	return public
}

// Base64 is k in the format of wg(8).
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Format hides the key.
func (k Key) Format(s fmt.State, _ rune) { s.Write([]byte("(hidden)")) }

// MarshalText hides the key from encoders.
func (k Key) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }
