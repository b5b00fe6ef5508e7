package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// archives writes a tar for each architecture. Each has the program of the other architecture too,
// so that culvert image push makes an image for both.
func (r *release) archives() error {
	units, err := r.units("/usr/local/bin")
	if err != nil {
		return err
	}
	for i, arch := range archs {
		files := []file{{"THIRD-PARTY.txt", 0o644, r.licences}}
		for _, name := range []string{"LICENSE", "CHANGELOG.md"} {
			text, err := r.read(name)
			if err != nil {
				return err
			}
			files = append(files, file{name, 0o644, text})
		}
		for from, to := range map[string]string{program("culvert", arch): "culvert",
			program("culvert-lab", arch):   "culvert-lab",
			program("culvert", archs[1-i]): program("culvert", archs[1-i])} {
			text, err := os.ReadFile(filepath.Join(r.dist, from))
			if err != nil {
				return err
			}
			files = append(files, file{to, 0o755, text})
		}
		files = append(files, within("man/man1/", r.man)...)
		files = append(files, within("completions/", r.completions)...)
		files = append(files, within("systemd/", units)...)
		name := fmt.Sprintf("culvert-%s-linux-%s", r.version, arch)
		if err := r.tar(r.path("%s.tar.gz", name), within(name+"/", files)); err != nil {
			return err
		}
	}
	return nil
}

func within(folder string, files []file) (all []file) {
	for _, f := range files {
		f.name = folder + f.name
		all = append(all, f)
	}
	return all
}

// units are those of systemd, for programs in a folder.
func (r *release) units(bin string) (all []file, err error) {
	for _, name := range []string{"culvert-gateway@.service", "culvert-node.service"} {
		text, err := r.read("docs/examples/systemd/" + name)
		if err != nil {
			return nil, err
		}
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin"), []byte(bin))
		all = append(all, file{name, 0o644, text})
	}
	return all, nil
}

// tar writes a tar file, packed by gzip.
func (r *release) tar(name string, files []file) error {
	slices.SortFunc(files, byName)
	var text bytes.Buffer
	zip, err := gzip.NewWriterLevel(&text, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zip)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: int64(f.mode), Size: int64(len(f.text)),
			ModTime: r.made, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

var chartVersion = regexp.MustCompile(`(?m)^version: .*\n`)

// chart packs the chart as helm package does, with the version of the programs.
func (r *release) chart() error {
	var files []file
	root := os.DirFS(filepath.Join(r.root, "kube/chart"))
	for _, pattern := range []string{"*.*", "templates/*"} {
		names, err := fs.Glob(root, pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			text, err := r.read("kube/chart/" + name)
			if err != nil {
				return err
			}
			if name == "Chart.yaml" {
				if !chartVersion.Match(text) {
					return fmt.Errorf("kube/chart/Chart.yaml has no version")
				}
				now := fmt.Appendf(nil, "version: %s\nappVersion: %[1]q\n", r.version)
				text = chartVersion.ReplaceAllLiteral(text, now)
			}
			files = append(files, file{"culvert/" + name, 0o644, text})
		}
	}
	return r.tar(r.path("culvert-chart-%s.tgz", r.version), files)
}

// notes takes what the changelog says of this version, or what is unreleased if it does not name
// this version. A paragraph becomes one line, because release pages break lines as the text does.
func (r *release) notes() error {
	text, err := r.read("CHANGELOG.md")
	if err != nil {
		return err
	}
	_, rest, ok := strings.Cut(string(text), "\n## ["+r.version+"]")
	if !ok {
		_, rest, ok = strings.Cut(string(text), "\n## [Unreleased]")
	}
	if !ok {
		return fmt.Errorf("CHANGELOG.md has neither %s nor Unreleased", r.version)
	}
	_, rest, _ = strings.Cut(rest, "\n")
	rest, _, _ = strings.Cut(rest, "\n## [")
	var notes strings.Builder
	blank := true
	for line := range strings.Lines(strings.TrimSpace(rest)) {
		line = strings.TrimRight(line, "\n")
		begins := blank || line == "" || strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "#")
		if begins {
			notes.WriteString("\n" + line)
		} else {
			notes.WriteString(" " + strings.TrimSpace(line))
		}
		blank = line == "" || strings.HasPrefix(line, "#")
	}
	return os.WriteFile(r.path("NOTES.md"), []byte(strings.TrimSpace(notes.String())+"\n"), 0o644)
}

// sums writes the checksums of all files.
func (r *release) sums() error {
	var list strings.Builder
	entries, err := os.ReadDir(r.dist)
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.dist, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	fmt.Print(list.String())
	return os.WriteFile(r.path("SHA256SUMS"), []byte(list.String()), 0o644)
}
