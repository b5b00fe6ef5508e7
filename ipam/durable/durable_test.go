package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"culvert/integration/need"
)

func replace(d *Disk, path, text string) error {
	return d.Replace(path, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
}

// TestReplace: whichever step fails, or is the last one of a process that is killed, the file is
// the old or the new one, and the next try succeeds. Only a process that is killed leaves something
// beside it.
func TestReplace(t *testing.T) {
	killed := errors.New("killed")
	for _, end := range []error{killed, syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		for _, at := range []string{"create", "write", "sync", "rename", "sync the folder"} {
			t.Run(fmt.Sprint(at, ", ", end), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				need.NoError(t, replace(new(Disk), path, "old"))
				d := &Disk{Fault: func(step string) error {
					if step == at && end == killed {
						panic(end)
					} else if step == at {
						return end
					}
					return nil
				}}
				func() {
					defer func() {
						if r := recover(); (r == killed) != (end == killed) {
							t.Errorf("ended by %v", r)
						}
					}()
					if err := replace(d, path, "new"); !errors.Is(err, end) {
						t.Errorf("%v, want %v", err, end)
					}
				}()
				want := "old"
				if at == "sync the folder" {
					want = "new"
				}
				if text, err := os.ReadFile(path); string(text) != want {
					t.Errorf("holds %q (%v), want %q", text, err, want)
				}
				_, err := os.Stat(path + Beside)
				if left, may := err == nil, end == killed && at != "create" && at != "sync the folder"; left != may {
					t.Errorf("something beside it: %v, want %v", left, may)
				}
				if err := replace(new(Disk), path, "next"); err != nil {
					t.Error("then:", err)
				}
			})
		}
	}
}

// TestFillFails: if the content cannot be made, the old file stays, and no temporary file is left.
func TestFillFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	need.NoError(t, replace(new(Disk), path, "old"))
	err := new(Disk).Replace(path, func(w io.Writer) error {
		io.WriteString(w, "ha")
		return syscall.ENOSPC
	})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	text, _ := os.ReadFile(path)
	all, _ := os.ReadDir(filepath.Dir(path))
	if string(text) != "old" || len(all) != 1 {
		t.Errorf("holds %q, beside %v", text, all)
	}
}

// TestSyncs: power may go at any time. A new folder is synced into its parent, the whole file
// before it takes its place, the folder after. All waits of one file are one.
func TestSyncs(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", "b", "file")
	var synced []string
	waits := 0
	d := &Disk{Wait: func(wait func() error) error { waits++; return wait() }, Sync: func(f *os.File) error {
		name, _ := filepath.Rel(root, f.Name())
		beside, _ := os.ReadFile(path + Beside)
		file, _ := os.ReadFile(path)
		synced = append(synced, fmt.Sprintf("%s: %q, %q", name, beside, file))
		return nil
	}}
	need.NoError(t, errors.Join(d.MakeFolder(filepath.Dir(path)), d.MakeFolder(filepath.Dir(path)),
		replace(d, path, "1"), replace(d, path, "2")))
	want := []string{`.: "", ""`, `a: "", ""`, `a/b/file.new: "1", ""`, `a/b: "", "1"`, `a/b/file.new: "2", "1"`,
		`a/b: "", "2"`}
	if !slices.Equal(synced, want) {
		t.Errorf("synced %q\nwant %q", synced, want)
	}
	if waits != 2 {
		t.Errorf("two files were waited for %d times", waits)
	}
	for name, mode := range map[string]os.FileMode{"a": 0o700, "a/b": 0o700, "a/b/file": 0o600} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
}
