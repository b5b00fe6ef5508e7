//go:build !nokube

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// TestSaveImage: an image takes the place of a file, not of a pipe, and nothing is left of one that
// did not fit.
func TestSaveImage(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	need.NoError(t, os.WriteFile(file, nil, 0o600))
	need.NoError(t, syscall.Mkfifo(pipe, 0o600))
	full := errors.New("no space left on device")
	for _, tt := range []struct {
		file string
		err  error
		want string
	}{{file, nil, ""}, {filepath.Join(dir, "new"), full, full.Error()}, {pipe, nil, pipe + ": is no file; name one"}} {
		err := saveImage(tt.file, func(w io.Writer) error {
			io.WriteString(w, "image")
			return tt.err
		})
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.file, err, tt.want)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "image" {
		t.Errorf("the file has %q: %v", text, err)
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode().IsRegular() {
		t.Errorf("the pipe has become %v: %v", info.Mode(), err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("%d files, want 2: %v", len(all), err)
	}
}
