package wgkey

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/crypto/curve25519"
)

func TestParse(t *testing.T) {
	k := NewPrivate()
	for name, text := range map[string]string{
		"base64": k.Base64(), "base64 with newline": k.Base64() + "\n", "raw": string(k[:]),
	} {
		if got, err := ParseStored([]byte(text)); err != nil || got != k {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := Parse(text); (err == nil) != (name != "raw") || err == nil && got != k {
			t.Errorf("%s, as text: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"empty": "", "zero": string(make([]byte, 32)), "31 bytes": string(k[:31]), "33 bytes": string(k[:]) + "x",
		"not base64": strings.Repeat("!", 44), "base64 of 31 bytes": base64.StdEncoding.EncodeToString(k[:31]),
	} {
		if _, err := ParseStored([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := Parse(text); err == nil {
			t.Errorf("%s: accepted as text", name)
		}
	}
}

// TestPublicKey compares with x/crypto, which wireguard-go uses.
func TestPublicKey(t *testing.T) {
	for range 20 {
		k := NewPrivate()
		if k[0]&7 != 0 || k[31]&0xc0 != 0x40 {
			t.Fatalf("not clamped")
		}
		want, err := curve25519.X25519(k[:], curve25519.Basepoint)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.Public(); !bytes.Equal(got[:], want) {
			t.Errorf("public key %x, want %x", got[:], want)
		}
	}
}

// TestKeyHides: no common way of printing reveals a key.
func TestKeyHides(t *testing.T) {
	k := NewPrivate()
	j, err := json.Marshal(struct{ K Key }{k})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %x %q %d %v", k, k, k, k, k, k, k, struct{ K Key }{k}) + string(j)
	if strings.Contains(all, k.Base64()) || strings.Contains(strings.ToLower(all), hex.EncodeToString(k[:])) ||
		strings.Contains(all, fmt.Sprint(k[0], k[1])) {
		t.Errorf("key shown: %s", all)
	}
	if n := strings.Count(all, "(hidden)"); n != 9 {
		t.Errorf("%d of 9 are hidden: %s", n, all)
	}
}
