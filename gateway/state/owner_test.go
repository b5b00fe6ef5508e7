package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// TestWhoCouldHaveWritten: only this process's user, root and this process's groups may have write
// access to the state.
func TestWhoCouldHaveWritten(t *testing.T) {
	const uid, group = 65532, 2000 // fsGroup
	for _, tt := range []struct {
		uid, gid, mode uint32
		want           string // "" = the state is trusted
	}{
		{uid, uid, 0o700, ""},
		{uid, 1, 0o755, ""},      // StateDirectory of systemd
		{0, 0, 0o755, ""},        // hostPath
		{0, group, 0o2770, ""},   // fsGroup on a volume that root made
		{uid, group, 0o2770, ""}, // fsGroup
		{1001, 1001, 0o700,
			"belongs to user 1001, who could have written anything there, and this process is user 65532; remove it"},
		{1001, group, 0o2770, "belongs to user 1001"},
		{uid, uid, 0o777, "has mode 0777: every user could have written there"},
		{0, 0, 0o1777, "has mode 1777: every user"},
		{0, 1, 0o775, "has mode 0775 and group 1, which this process is not in"},
	} {
		name := fmt.Sprintf("%d:%d %04o", tt.uid, tt.gid, tt.mode)
		err := distrust("/state", &syscall.Stat_t{Uid: tt.uid, Gid: tt.gid, Mode: tt.mode}, uid, []int{group, uid})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), "/state "+tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestFolderOfOthers: state that others could have written is not used; the error names the owner
// and the remedy.
func TestFolderOfOthers(t *testing.T) {
	root := t.TempDir()
	d := open(t, root, "milan")
	need.NoError(t, d.KeepIdentity(&someone))
	change := func(mode os.FileMode, names ...string) {
		for _, name := range names {
			need.NoError(t, os.Chmod(filepath.Join(d.Path(), name), mode))
		}
	}
	change(0o777, "")
	if Adopt(root, "milan", d.LockFile()) != nil {
		t.Error("a folder that all may write to is taken over")
	}
	d.Close()
	if _, err := Open(root, "milan"); err == nil || !strings.Contains(err.Error(),
		"every user could have written there; remove it") || errors.Is(err, ErrInUse) {
		t.Errorf("a folder that all may write to: %v", err)
	}
	change(0o700, "")
	need.NoError(t, d.KeepServices(func(io.Writer) error { return nil }))
	change(0o666, identityFile, servicesFile)
	d = open(t, root, "milan")
	if _, err := d.Services(); err == nil || !strings.Contains(err.Error(), "services has mode 0666: every user") {
		t.Errorf("Services that all may write: %v", err)
	}
	if _, err := d.Identity("rome"); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(),
		"identity has mode 0666: every user") {
		t.Errorf("an identity that all may write: %v", err)
	}
	need.NoError(t, d.KeepIdentity(&someone))
	if got, err := d.Identity("rome"); err != nil || got != someone {
		t.Errorf("one that has taken its place: %v, %v", got, err)
	}
	d.Close()
	const other = 54321
	need.Kernel(t, "root", os.Chown(d.Path(), other, other))
	if _, err := Open(root, "milan"); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("belongs to user %d", other)) {
		t.Errorf("the folder of another user: %v", err)
	}
}
