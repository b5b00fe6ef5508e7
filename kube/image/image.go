package image

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	program    = "culvert/cmd/culvert"
	entryPoint = "/usr/bin/culvert"
	user       = "65532:65532"
	source     = "culvert image"
)

// Binary is a culvert that can be packed.
type Binary struct {
	Name    string // of its file
	Arch    string // GOARCH
	Version string // of the module
	// Revision is the commit, and Created its time. In a build without version control they are ""
	// and the zero Time.
	Revision string
	Created  time.Time

	bytes []byte
}

// Read reads a binary. It refuses what would not start in the image, which has no libraries.
func Read(name string) (*Binary, error) {
	b, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

func read(name string) (*Binary, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller names the file
	}
	info, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil || info.Path != program {
		return nil, errors.New("is no culvert; give a binary of culvert for linux")
	}
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("is not for linux; give a binary of culvert for linux")
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil,
				errors.New("needs shared libraries, which the image does not have; build it with CGO_ENABLED=0, as make build does")
		}
	}
	b := &Binary{Name: name, Version: info.Main.Version, bytes: text}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOARCH":
			b.Arch = s.Value
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Created, _ = time.Parse(time.RFC3339, s.Value)
		}
	}
	return b, nil
}

// Tag returns the tag of an image that nobody has named.
func (b *Binary) Tag() string {
	return strings.Trim(strings.ReplaceAll(b.Version, "+", "-"), "()")
}

// SameBuild reports whether two binaries are of one commit.
func (b *Binary) SameBuild(other *Binary) bool {
	return b.Version == other.Version && b.Revision == other.Revision
}

// Image is an index of images, one for each architecture.
type Image struct {
	index v1.ImageIndex
	first v1.Image // for programs that know no index
	// Archs has each GOARCH for which there is a binary.
	Archs []string
}

// New packs binaries, each of another architecture.
func New(binaries ...*Binary) (*Image, error) {
	im := &Image{index: empty.Index}
	had := make(map[string]string)
	for _, b := range binaries {
		if other := had[b.Arch]; other != "" {
			return nil, fmt.Errorf("%s and %s are both for %s; give one for each architecture", other, b.Name, b.Arch)
		}
		had[b.Arch] = b.Name
		im.Archs = append(im.Archs, b.Arch)
		if !b.SameBuild(binaries[0]) {
			return nil, fmt.Errorf("%s is %s of commit %.12s, and %s is %s of commit %.12s; give two of one build",
				binaries[0].Name, binaries[0].Version, binaries[0].Revision, b.Name, b.Version, b.Revision)
		}
		one, err := b.image()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
		if im.first == nil {
			im.first = one
		}
		im.index = mutate.AppendManifests(im.index, mutate.IndexAddendum{
			Add:        one,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: b.Arch}},
		})
	}
	return im, nil
}

// Digest returns the digest of the index, such as sha256:….
func (im *Image) Digest() (string, error) {
	h, err := im.index.Digest()
	return h.String(), err
}

// image returns the image of one binary: its layer, and a configuration as the Dockerfile's.
func (b *Binary) image() (v1.Image, error) {
	text, err := b.layer()
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.Created.UTC()}
	im := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	im, err = mutate.ConfigFile(im, &v1.ConfigFile{
		OS: "linux", Architecture: b.Arch, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: user, Entrypoint: []string{entryPoint},
			Env:    []string{"PATH=/usr/bin"}, // for kubectl exec, which gets the name of the program alone
			Labels: b.labels(),
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(im, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: source},
	})
}

func (b *Binary) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":    "culvert",
		"org.opencontainers.image.version":  b.Version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if b.Revision != "" {
		labels["org.opencontainers.image.revision"] = b.Revision
		labels["org.opencontainers.image.created"] = b.Created.UTC().Format(time.RFC3339)
	}
	return labels
}

// layer returns a tar file with the binary and its folders.
func (b *Binary) layer() ([]byte, error) {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, folder := range []string{"usr/", "usr/bin/"} {
		if err := w.WriteHeader(b.header(folder, tar.TypeDir, 0)); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(b.header(strings.TrimPrefix(entryPoint, "/"), tar.TypeReg, len(b.bytes))); err != nil {
		return nil, err
	}
	if _, err := w.Write(b.bytes); err != nil {
		return nil, err
	}
	err := w.Close() // which writes the end
	return text.Bytes(), err
}

func (b *Binary) header(name string, kind byte, size int) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: 0o755, Size: int64(size), ModTime: b.modified(),
		Format: tar.FormatUSTAR}
}

// modified is the time of files. The zero Time has no place in a tar file.
func (b *Binary) modified() time.Time {
	if b.Created.IsZero() {
		return time.Unix(0, 0)
	}
	return b.Created
}
