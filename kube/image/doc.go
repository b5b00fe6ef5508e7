// Package image packs culvert's own binary as a container image: no builder, no Dockerfile. It
// pushes the image to a registry, and writes it as an archive.
//
//	Read   a binary: its architecture and what its build says of it
//	New    an index with an image for each binary
//	Push   to a registry, with the credentials that docker and podman keep
//	Save   as an archive that docker, podman, containerd, k3s and kind load
//
// An image has what the Dockerfile's has: one file, user 65532, the entry point, labels. Its bytes
// follow from the binary alone, so the same release has the same digest everywhere.
package image
