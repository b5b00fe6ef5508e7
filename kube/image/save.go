package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Save writes the image as a tar file, under the name REF. It is an OCI layout (image-spec,
// image-layout.md), which containerd, k3s, kind and podman load, with a manifest.json for docker,
// which names the first architecture alone.
func (im *Image) Save(w io.Writer, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("%q: %s", ref, oneLine(err.Error()))
	}
	a := &archive{Writer: tar.NewWriter(w), has: make(map[string]bool)}
	list, err := im.index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range list.Manifests {
		one, err := im.index.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := a.image(one); err != nil {
			return err
		}
	}
	text, err := im.index.RawManifest()
	if err != nil {
		return err
	}
	at, err := a.blob(text)
	if err != nil {
		return err
	}
	kind, err := im.index.MediaType()
	if err != nil {
		return err
	}
	layout := v1.IndexManifest{SchemaVersion: 2, MediaType: kind, Manifests: []v1.Descriptor{{
		MediaType: kind, Size: int64(len(text)), Digest: at,
		Annotations: map[string]string{
			"io.containerd.image.name":          tag.Name(),
			"org.opencontainers.image.ref.name": tag.TagStr(),
		},
	}}}
	docker, err := dockerManifest(im.first, tag)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		is   any
	}{
		{"index.json", layout},
		{"oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}},
		{"manifest.json", docker},
	} {
		text, err := json.Marshal(f.is)
		if err != nil {
			return err
		}
		if err := a.file(f.name, text); err != nil {
			return err
		}
	}
	return a.Close()
}

// dockerManifest is what docker load reads: paths of an image's configuration and layers.
func dockerManifest(im v1.Image, tag name.Tag) (any, error) {
	m, err := im.Manifest()
	if err != nil {
		return nil, err
	}
	layers := []string{}
	for _, l := range m.Layers {
		layers = append(layers, blobPath(l.Digest))
	}
	return []map[string]any{{
		"Config": blobPath(m.Config.Digest), "RepoTags": []string{tag.Name()}, "Layers": layers,
	}}, nil
}

type archive struct {
	*tar.Writer
	has map[string]bool
}

func (a *archive) image(im v1.Image) error {
	layers, err := im.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			_, err = a.blob(text)
		}
		if err != nil {
			return err
		}
	}
	config, err := im.RawConfigFile()
	if err != nil {
		return err
	}
	manifest, err := im.RawManifest()
	if err != nil {
		return err
	}
	for _, text := range [][]byte{config, manifest} {
		if _, err := a.blob(text); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) blob(text []byte) (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		return h, err
	}
	return h, a.file(blobPath(h), text)
}

func blobPath(h v1.Hash) string { return strings.Join([]string{"blobs", h.Algorithm, h.Hex}, "/") }

// file adds a file once.
func (a *archive) file(name string, text []byte) error {
	if a.has[name] {
		return nil
	}
	a.has[name] = true
	err := a.WriteHeader(&tar.Header{
		Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(0, 0),
		Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = a.Write(text)
	return err
}
