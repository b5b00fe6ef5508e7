package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestReadLines: what has no end of line yet is no line.
func TestReadLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	for text, want := range map[string]string{"": "", "half": "", "one\nha": "one\n", "one\ntwo\n": "one\ntwo\n"} {
		need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		if got, err := ReadLines(file); got != want || err != nil {
			t.Errorf("of %q: %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := ReadLines(file + "2"); err == nil {
		t.Error("a file that is not there was read")
	}
}

// TestReadLinesBesideWriter: a line that is written by one call while the file is read comes whole
// or not at all.
func TestReadLinesBesideWriter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	line := strings.Repeat("x", 5000) + "\n" // on two pages or three
	done := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		for range 300 {
			if err == nil {
				_, err = f.WriteString(line)
			}
		}
		done <- err
	}()
	for {
		var ended bool
		select {
		case err := <-done:
			need.NoError(t, err)
			ended = true
		default:
		}
		text, err := ReadLines(file)
		if err != nil && !os.IsNotExist(err) || text != strings.Repeat(line, strings.Count(text, "\n")) {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
		if ended {
			if len(text) != 300*len(line) {
				t.Errorf("%d bytes at the end", len(text))
			}
			return
		}
	}
}
