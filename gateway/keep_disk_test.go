package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/seats"
	"culvert/gateway/state"
	"culvert/integration/need"
	"culvert/ipam"
)

// A disk is a file system in memory that is mounted nowhere; its path works while the process runs.
type disk struct {
	t    *testing.T
	fd   int
	path string
}

const diskSize = 256 << 10 // bytes

func newDisk(t *testing.T) *disk {
	t.Helper()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	need.Kernel(t, "root", err)
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "size", fmt.Sprint(diskSize)), unix.FsconfigCreate(fs))
	need.NoError(t, err)
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	need.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return &disk{t, fd, fmt.Sprintf("/proc/self/fd/%d", fd)}
}

const filler = "filler"

// fill uses up all space.
func (d *disk) fill() {
	d.t.Helper()
	f, err := os.Create(filepath.Join(d.path, filler))
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4<<10))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		d.t.Fatal(err)
	}
}

// setReadOnly makes it read-only, or writable again.
func (d *disk) setReadOnly(is bool) {
	d.t.Helper()
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if is {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	if err := unix.MountSetattr(d.fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		d.t.Fatal(err)
	}
}

// copyState copies a state folder. It omits incomplete files, which the gateway may rename at any
// time.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, ".new") {
			return nil
		}
		place := to + strings.TrimPrefix(path, from)
		if entry.IsDir() {
			return os.MkdirAll(place, 0o700)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(place, content, 0o600)
	})
	need.NoError(t, err)
}

// keepNow writes the connections of g, as g itself does from time to time.
func keepNow(g *Gateway) { g.life.Save() }

// TestDiskThatTakesNothing: with a read-only folder, a gateway starts from the folder's content and
// carries packets, counts failed writes, leaves the content intact, and writes again when it can.
func TestDiskThatTakesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil, mend func(*disk)
		want        error
	}{
		"full":      {(*disk).fill, func(d *disk) { os.Remove(filepath.Join(d.path, filler)) }, syscall.ENOSPC},
		"read-only": {func(d *disk) { d.setReadOnly(true) }, func(d *disk) { d.setReadOnly(false) }, syscall.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			k := newKeepingPair(t)
			keepNow(k.rome.Gateway)
			copyState(t, k.rc.State, d.path)
			tt.spoil(d)
			before, err := os.ReadFile(filepath.Join(d.path, "milan/connections"))
			need.NoError(t, err)
			k.rc.State = d.path
			k.restart(&k.rome, k.rc, 10)
			k.answer(k.second, 1)
			k.answer(k.first, 0)
			said := new(lockedText)
			k.rome.log.Logger.SetOutput(said)
			keepNow(k.rome.Gateway)
			if page := string(k.rome.inspect.Metrics(seats.New(nil), 0)); strings.Contains(page,
				"culvert_state_save_failures_total 0\n") {
				t.Error("no write has failed")
			}
			if err := os.WriteFile(filepath.Join(d.path, "milan/other"), make([]byte, 8<<10),
				0o600); !errors.Is(err, tt.want) {
				t.Errorf("a write fails with %v, want %v", err, tt.want)
			}
			if after, err := os.ReadFile(filepath.Join(d.path, "milan/connections")); err != nil ||
				string(after) != string(before) {
				t.Errorf("what was kept has changed: %v", err)
			}
			tt.mend(d)
			keepNow(k.rome.Gateway)
			if !strings.Contains(said.String(), "state: is written again") {
				t.Errorf("then %s", said)
			}
			k.answer(k.second, 1)
		})
	}
}

// TestEmptyDiskThatTakesNothing: a gateway does not need any content there either.
func TestEmptyDiskThatTakesNothing(t *testing.T) {
	for name, spoil := range map[string]func(*disk){"full": (*disk).fill,
		"read-only": func(d *disk) { d.setReadOnly(true) }} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			spoil(d)
			p := newPair(t, func(rc, _ *config.Config) { rc.State = d.path })
			p.there(t, 0)
			p.back(t)
		})
	}
}

// TestClaimWithoutWriting: addresses that are remembered there stay in use, and a gateway that does
// not use that memory starts without it.
func TestClaimWithoutWriting(t *testing.T) {
	c := configtest.Cluster("rome", "milan", config.Server, "10.61.0.0/16", "10.71.0.0/16")
	d := newDisk(t)
	c.IPAM.File = filepath.Join(d.path, "ipam.json")
	before, err := c.Claim(t.Context())
	need.NoError(t, err)
	before.Close()
	d.setReadOnly(true)
	chosen := *c
	chosen.Remote = slices.Clone(c.Remote)
	chosen.Remote[0].Remapped = netip.Prefix{} // auto
	claim, err := chosen.Claim(t.Context())
	need.NoError(t, err)
	defer claim.Close()
	if _, err := ipam.Open(c.IPAM.File).Exclude(t.Context(), "milan"); !errors.Is(err, ipam.ErrRunning) {
		t.Errorf("exclude a gateway that runs: %v", err)
	}

	empty := newDisk(t)
	empty.setReadOnly(true)
	c.IPAM.File = filepath.Join(empty.path, "ipam.json")
	nothing, err := c.Claim(t.Context())
	if err != nil {
		t.Fatal("nothing is auto:", err)
	}
	nothing.Close()
	chosen.IPAM.File = c.IPAM.File
	if _, err := chosen.Claim(t.Context()); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(),
		"make the folder writable") {
		t.Errorf("something is auto: %v", err)
	}
}

// TestHugeConnections: of a file larger than any table, only the beginning is read, in bounded
// time.
func TestHugeConnections(t *testing.T) {
	k := newKeepingPair(t)
	k.rome.stop()
	need.NoError(t, os.Truncate(filepath.Join(k.rc.State, "milan/connections"), 1<<40))
	log, text := listeningLog()
	began := time.Now()
	cl := open(t, k.rc, 30, log, nil)
	defer cl.life.Close()
	defer cl.close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("started in %v", took)
	}
	if n := cl.engine.Stats().Restored; n != 2 || !strings.Contains(text.String(), "not all: damaged-block") {
		t.Errorf("%d connections restored, want 2, and a word of the rest: %s", n, text)
	}
}

// TestFolderIsAdopted: a gateway that takes over does not rewrite existing files, which would delay
// packets.
func TestFolderIsAdopted(t *testing.T) {
	p, socket := newHandPair(t)
	path := filepath.Join(p.rome.config().State, "milan", "identity")
	peer := []byte(p.rome.config().WireGuard.PeerPublicKey.Base64())
	waitFor(t, "the peer's place on disk", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && bytes.Contains(text, peer)
	})
	before, err := os.Stat(path)
	need.NoError(t, err)
	g, err := p.nextRome(t, socket, nil)
	need.NoError(t, err)
	serve(t, g)
	overlapped(t, g)
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the identity was written again: %v", err)
	}
	d, err := state.Open(p.rome.config().State, "milan")
	if err == nil {
		d.Close()
	}
	if !errors.Is(err, state.ErrInUse) {
		t.Errorf("the folder is free: %v", err)
	}
}
