package integration

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
)

// TestImage makes images as make image and make images do, without a network, and runs the program of one as the image's user on the image's root.
func TestImage(t *testing.T) {
	isolated(t, func(t *testing.T) {
		dir := t.TempDir()
		binary, err := os.ReadFile(os.Getenv(binaryEnv))
		need.NoError(t, err)
		// make release normally builds these first.
		files := map[string][]byte{
			"dist/culvert-linux-amd64": binary, "dist/culvert-linux-arm64": []byte("another"), "dist/SHA256SUMS": []byte("not for the image"),
			"storage.conf": fmt.Appendf(nil, "[storage]\ndriver = \"vfs\"\nrunroot = %q\ngraphroot = %q\n", dir+"/run", dir+"/graph"),
		}
		for _, name := range []string{"Makefile", "Dockerfile", ".dockerignore"} {
			if files[name], err = os.ReadFile(filepath.Join("..", name)); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range files {
			path := filepath.Join(dir, name)
			need.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o755)))
		}
		run := func(program string, args ...string) {
			t.Helper()
			cmd := need.Command(t, program, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+dir+"/storage.conf", "BUILDAH_ISOLATION=chroot", "GOPROXY=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd, err, out)
			}
		}
		run("make", "--old-file=release", "image")
		run("buildah", "push", "--quiet", "culvert:latest", "dir:"+dir+"/own")
		testImage(t, filepath.Join(dir, "own"), runtime.GOARCH, files["dist/culvert-linux-"+runtime.GOARCH])
		for _, arch := range []string{"amd64", "arm64"} {
			cmd := need.Command(t, "buildah", "inspect", "--type", "image", "culvert:latest-"+arch)
			cmd.Env = append(os.Environ(), "CONTAINERS_STORAGE_CONF="+dir+"/storage.conf")
			if out, err := cmd.CombinedOutput(); (err == nil) != (arch == runtime.GOARCH) {
				t.Errorf("make image, %s: %v\n%s", arch, err, out)
			}
		}
		run("make", "--old-file=release", "images")
		for arch, program := range map[string][]byte{"amd64": binary, "arm64": []byte("another")} {
			run("buildah", "push", "--quiet", "culvert:latest-"+arch, "dir:"+dir+"/"+arch)
			testImage(t, filepath.Join(dir, arch), arch, program)
		}
	}, programs("buildah", "buildah", "make"))
}

// testImage looks into an image.
func testImage(t *testing.T, dir, arch string, program []byte) {
	read := func(name string, to any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(text, to)
		}
		need.NoError(t, err)
	}
	type part struct{ Digest string }
	var manifest struct {
		Config part
		Layers []part
	}
	read("manifest.json", &manifest)
	blob := func(p part) string { return strings.TrimPrefix(p.Digest, "sha256:") }
	var image struct {
		Architecture, OS string
		Config           struct {
			User            string
			Env, Entrypoint []string
			Labels          map[string]string
		}
	}
	read(blob(manifest.Config), &image)
	c := &image.Config
	if image.Architecture != arch || image.OS != "linux" || c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/culvert"}) ||
		!slices.Contains(c.Env, "PATH=/usr/bin") || c.Labels["org.opencontainers.image.title"] != "culvert" {
		t.Errorf("%s: %+v", arch, image)
	}
	root := t.TempDir()
	var names []string
	for _, layer := range manifest.Layers {
		names = append(names, unpack(t, filepath.Join(dir, blob(layer)), root)...)
	}
	if !slices.Equal(names, []string{"usr/bin/culvert"}) {
		t.Errorf("%s has %q", arch, names)
	}
	if text, err := os.ReadFile(filepath.Join(root, "usr/bin/culvert")); err != nil || string(text) != string(program) {
		t.Errorf("%s: another program, %v", arch, err)
	}
	if arch != "amd64" {
		return
	}
	need.NoError(t, os.Chmod(root, 0o755))
	cmd := need.Command(t, filepath.Join(root, c.Entrypoint[0]), "version")
	cmd.Path = c.Entrypoint[0] // as it is called inside
	cmd.Dir, cmd.Env = "/", c.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: unprivilegedUID, Gid: unprivilegedUID}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "culvert ") {
		t.Errorf("%v: %s", err, out)
	}
}

// unpack takes the files out of a layer and returns their names.
func unpack(t *testing.T, layer, root string) (names []string) {
	file, err := os.Open(layer)
	need.NoError(t, err)
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	need.NoError(t, err)
	for entries := tar.NewReader(zipped); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		need.NoError(t, err)
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			need.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		text, err := io.ReadAll(entries)
		need.NoError(t, errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, h.FileInfo().Mode())))
		names = append(names, h.Name)
	}
}
