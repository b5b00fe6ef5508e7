package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
	"culvert/ipam/durable"
)

var someone = Identity{
	Cluster: "rome", PortKey: PortKey([]byte("0123456789abcdef")),
	Peer: Peer{PublicKey: "Zm9vYmFyZm9vYmFyZm9vYmFyZm9vYmFyZm9vYmFyZm8=", Configured: "milan.example:51840",
		Endpoint: netip.MustParseAddrPort("[2001:db8::7]:51840")},
}

func open(t *testing.T, root, peer string) *Dir {
	t.Helper()
	d, err := Open(root, peer)
	need.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

func TestIdentityIsKept(t *testing.T) {
	root := filepath.Join(t.TempDir(), "var/lib/culvert")
	d := open(t, root, "milan")
	if _, err := d.Identity("rome"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of an empty folder: %v, want that it does not exist", err)
	}
	need.NoError(t, d.KeepIdentity(&someone))
	asOf := time.Now().Add(-time.Hour)
	if err := d.KeepConnections(asOf, func(w io.Writer) error {
		_,
			err := io.WriteString(w, "all")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d.Close()

	d = open(t, root, "milan")
	if got, err := d.Identity("rome"); err != nil || got != someone {
		t.Errorf("after Close and Open: %v, %v", got, err)
	}
	r, at, err := d.Connections()
	need.NoError(t, err)
	defer r.Close()
	if got, err := io.ReadAll(r); string(got) != "all" || !at.Equal(asOf) {
		t.Errorf("connections as of %v: %q, %v", at, got, err)
	}
	if _, err := d.Identity("paris"); !errors.Is(err, ErrForeign) {
		t.Errorf("as the gateway of another cluster: %v, want ErrForeign", err)
	}
	if _, err := open(t, root, "paris").Identity("rome"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("towards another peer: %v, want that it does not exist", err)
	}
	for name, want := range map[string]fs.FileMode{"": 0o700, lockFile: 0o600, identityFile: 0o600,
		connectionsFile: 0o600} {
		if info, err := os.Stat(filepath.Join(d.Path(), name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestOneProcessHasTheFolder(t *testing.T) {
	root := t.TempDir()
	d := open(t, root, "milan")
	_, err := Open(root, "milan")
	want := fmt.Sprintf("state: in use: %s/milan belongs to the gateway that runs as process %d; stop it, or give this one another folder", root, os.Getpid())
	if !errors.Is(err, ErrInUse) || err.Error() != want {
		t.Errorf("a second process: %v\nwant %s", err, want)
	}
	open(t, root, "paris") // another peering
	d.Close()
	open(t, root, "milan")
}

// TestDamage tries every change of a byte and every length of an identity.
func TestDamage(t *testing.T) {
	text := someone.Encode()
	if i, err := DecodeIdentity(text); err != nil || i != someone {
		t.Fatalf("whole: %v, %v", i, err)
	}
	for at := range text {
		if _, err := DecodeIdentity(text[:at]); !errors.Is(err, ErrDamaged) {
			t.Errorf("the first %d bytes: %v, want ErrDamaged", at, err)
		}
		for flip := 1; flip < 256; flip++ {
			changed := bytes.Clone(text)
			changed[at] ^= byte(flip)
			// A change may give another valid version, or write the checksum differently: then the
			// content must be what was written.
			if i, err := DecodeIdentity(changed); err == nil && i != someone || err != nil &&
				!errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Errorf("byte %d is %q: %v, %v", at, changed[at], i, err)
			}
		}
	}
	newer := strings.Replace(string(text), "version 1,", "version 12,", 1)
	if _, err := DecodeIdentity([]byte(newer)); !errors.Is(err, ErrNewer) {
		t.Errorf("of version 12: %v, want ErrNewer", err)
	}
}

// TestEndpointOfManyLines: WireGuard reads the peer's endpoint as a line, so a zone with a line
// break could describe another peer.
func TestEndpointOfManyLines(t *testing.T) {
	bent := someone
	at, err := netip.ParseAddrPort("[fe80::1%x]:1\npublic_key=00\nendpoint=[fe80::1%x]:1")
	need.NoError(t, err)
	bent.Peer.Endpoint = at
	if i, err := DecodeIdentity(bent.Encode()); !errors.Is(err, ErrDamaged) {
		t.Errorf("%q is taken for a place: %v", i.Peer.Endpoint, err)
	}
}

// TestWhatIsThere puts all kinds of files and folders in the place of an identity: none keeps a
// gateway from its folder, and each is replaced.
func TestWhatIsThere(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"an empty file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a huge file": func(path string) error {
			return errors.Join(os.WriteFile(path, someone.Encode(), 0o600), os.Truncate(path, 1<<40))
		},
		"a FIFO":             func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link to a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"what was not finished": func(path string) error {
			return os.WriteFile(path+durable.Beside, []byte("half"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir(), "milan")
			need.NoError(t, put(filepath.Join(d.Path(), identityFile)))
			if i, err := d.Identity("rome"); err == nil {
				t.Errorf("taken for %v", i)
			}
			need.NoError(t, d.KeepIdentity(&someone))
			if got, err := d.Identity("rome"); err != nil || got != someone {
				t.Errorf("then %v, %v", got, err)
			}
		})
	}
}

// TestWaits: a file is written with one call of Wait, which waits for the disk.
func TestWaits(t *testing.T) {
	defer func(before func(func() error) error) { Wait = before }(Wait)
	d := open(t, t.TempDir(), "milan")
	waits := 0
	Wait = func(do func() error) error {
		waits++
		return do()
	}
	for i, write := range []func() error{
		func() error { return d.KeepIdentity(&someone) },
		func() error { return d.KeepConnections(time.Now(), func(io.Writer) error { return nil }) },
	} {
		if err := write(); err != nil || waits != i+1 {
			t.Errorf("%d waits, want %d: %v", waits, i+1, err)
		}
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	d := open(t, t.TempDir(), "milan")
	write := func(text string, err error) error {
		return d.KeepConnections(time.Now(), func(w io.Writer) error {
			_, e := io.WriteString(w, text)
			return errors.Join(err, e)
		})
	}
	need.NoError(t, write("all", nil))
	if err := write("ha", syscall.ENOSPC); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(d.Path(), connectionsFile)); string(text) != "all" {
		t.Errorf("holds %q (%v), want what was there before", text, err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.Path(), "*"+durable.Beside)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestFolderThatCannotBe(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	need.NoError(t, os.WriteFile(root, nil, 0o600))
	if _, err := Open(root, "milan"); err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(),
		"make the folder writable") {
		t.Errorf("below a file: %v, want an error with a remedy", err)
	}
}

// TestStrangeLock: a lock that is a symbolic link is neither followed nor waited for.
func TestStrangeLock(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a FIFO": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			root, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
			folder := filepath.Join(root, "milan")
			need.NoError(t, errors.Join(make(target), os.Mkdir(folder, 0o700),
				os.Symlink(target, filepath.Join(folder, lockFile))))
			if d, err := Open(root, "milan"); err == nil {
				d.Close()
				t.Errorf("a link to %s is taken for a lock", name)
			}
		})
	}
}

func TestPortKeyIsHidden(t *testing.T) {
	encoded, err := json.Marshal(someone)
	need.NoError(t, err)
	secret := string(someone.PortKey[:])
	for _, text := range []string{fmt.Sprint(someone), fmt.Sprintf("%+v %#v %s %x", someone, someone, someone.PortKey,
		someone.PortKey), string(encoded)} {
		if strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) ||
			strings.Contains(text, "MDEyMz") {
			t.Errorf("shown in %s", text)
		}
	}
}
