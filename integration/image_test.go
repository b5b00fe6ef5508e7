package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"culvert/integration/need"
)

// TestImageHasThisProgram: culvert image save packs the file that runs, and the file starts on its
// own. TestKubeClusters runs it on nodes.
func TestImageHasThisProgram(t *testing.T) {
	binary, err := culvertBinary()
	need.NoError(t, err)
	out := new(bytes.Buffer)
	cmd := need.Command(t, binary, "image", "save", "-")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	need.NoError(t, cmd.Run())
	files := make(map[string][]byte)
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		need.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		need.NoError(t, err)
	}
	var manifest []struct{ Layers []string }
	need.NoError(t, json.Unmarshal(files["manifest.json"], &manifest))
	unzipped, err := gzip.NewReader(bytes.NewReader(files[manifest[0].Layers[0]]))
	need.NoError(t, err)
	want, err := os.ReadFile(binary)
	need.NoError(t, err)
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		need.NoError(t, err) // the last one is the program
		if h.Name != "usr/bin/culvert" {
			continue
		}
		got, err := io.ReadAll(r)
		need.NoError(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, want the %d of %s", len(got), len(want), filepath.Base(binary))
		}
		return
	}
}

// TestImageFileIsForAll: another user than the one that has saved the image may load it.
func TestImageFileIsForAll(t *testing.T) {
	binary, err := culvertBinary()
	need.NoError(t, err)
	file := filepath.Join(t.TempDir(), "culvert.tar")
	cmd := need.Command(t, binary, "image", "save", file)
	cmd.Stderr = os.Stderr
	need.NoError(t, cmd.Run())
	info, err := os.Stat(file)
	need.NoError(t, err)
	if info.Mode() != 0o644 {
		t.Errorf("mode %v, want -rw-r--r--", info.Mode())
	}
}
