// Package wgkey reads, makes and hides the keys of WireGuard.
package wgkey

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Key is a key of WireGuard: a private or a public key of Curve25519, or a pre-shared key.
//
// It formats as "(hidden)" under every verb, so that no log line or error can show a secret by
// accident; Base64 returns the text.
type Key [32]byte

// The errors describe a key's format without quoting the input, which may be a secret.
var (
	errText   = errors.New("not a WireGuard key; want 44 characters of base64 as wg(8) prints")
	errStored = fmt.Errorf("%w, or 32 raw bytes", errText)
)

// Parse parses the base64 text of wg(8), with or without surrounding white space. The all-zero key
// is no key.
func Parse(text string) (k Key, err error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(text))
	if copy(k[:], raw); err != nil || len(raw) != len(k) || k == (Key{}) {
		return Key{}, errText
	}
	return k, nil
}

// ParseStored parses what a file or a Secret holds: the text of Parse, or the 32 raw bytes in
// Liqo's Secrets. What somebody has typed may have 32 bytes by chance.
func ParseStored(b []byte) (Key, error) {
	if k := (Key{}); len(b) == len(k) && copy(k[:], b) > 0 && k != (Key{}) {
		return k, nil
	}
	k, err := Parse(string(b))
	if err != nil {
		return Key{}, errStored
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

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k == Key{} }

// Base64 is k in the format of wg(8).
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Format hides the key.
func (k Key) Format(s fmt.State, _ rune) { s.Write([]byte("(hidden)")) }

// MarshalText hides the key from encoders.
func (k Key) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }
