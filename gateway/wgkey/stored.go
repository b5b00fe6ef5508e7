package wgkey

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Stored returns the private key in a file: an existing one, or a new one, which never overwrites a
// file.
func Stored(name string, existing bool) (Key, error) {
	if existing {
		text, err := os.ReadFile(name)
		if err != nil {
			return Key{}, err
		}
		key, err := ParseStored(text)
		if err != nil {
			return Key{}, fmt.Errorf("%s: %w", name, err)
		}
		return key, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return Key{}, fmt.Errorf("%s exists and is not overwritten; --public prints its public key", name)
	}
	if err != nil {
		return Key{}, err
	}
	key := NewPrivate()
	if _, err := fmt.Fprintln(f, key.Base64()); err != nil {
		f.Close()
		os.Remove(name)
		return Key{}, err
	}
	return key, f.Close()
}
