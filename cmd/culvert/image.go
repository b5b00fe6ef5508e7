//go:build !nokube

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"culvert/ipam/durable"
	"culvert/kube/image"
)

func newImageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Put this program into a registry or a node, as a container image",
		Long: "Pack this program as a container image, without docker and without a Dockerfile. The image is\n" +
			"that of the Dockerfile: one file, user 65532. The same release has the same digest everywhere.",
		Example: "  culvert image push registry.example/net/culvert\n" +
			"  culvert image save culvert.tar && kind load image-archive culvert.tar\n" +
			"  sudo culvert image load",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("image: want push, save or load; see --help") },
	}
	cmd.AddCommand(newImagePushCommand(), newImageSaveCommand(), newImageLoadCommand())
	return cmd
}

func newImagePushCommand() *cobra.Command {
	var binaries []string
	var o image.PushOptions
	cmd := &cobra.Command{
		Use:   "push REF",
		Short: "Push the image to a registry",
		Long: "Push the image to a registry, and print its name with the digest, which --image takes.\n" +
			"Without a tag, REF gets this program's version. Credentials are those of docker login and\n" +
			"podman login: $DOCKER_CONFIG/config.json or ~/.docker/config.json, its credential helpers,\n" +
			"$REGISTRY_AUTH_FILE, and podman's auth.json.",
		Example: "  culvert image push registry.example/net/culvert\n" +
			"  culvert kube template --peering milan \\\n" +
			"    --image $(culvert image push registry.example/net/culvert)",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			im, tag, err := packed(binaries, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Progress = progress(cmd.ErrOrStderr())
			ref, err := im.Push(cmd.Context(), args[0], tag, o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), ref)
			return err
		},
	}
	addBinaries(cmd, &binaries)
	cmd.Flags().BoolVar(&o.PlainHTTP, "plain-http", false, "allow a registry without TLS; loopback needs no permission")
	return cmd
}

// progress returns a function that prints every two seconds how much of an image has been sent.
func progress(w io.Writer) func(done, total int64) {
	said := time.Now()
	return func(done, total int64) {
		if time.Since(said) >= 2*time.Second {
			said = time.Now()
			fmt.Fprintf(w, "%d of %d MB\n", done/1e6, total/1e6)
		}
	}
}

func newImageSaveCommand() *cobra.Command {
	return addArchive(&cobra.Command{
		Use:   "save FILE",
		Short: "Write the image as an archive",
		Long: "Write the image to FILE, or - for standard output, as an archive that docker load, podman\n" +
			"load, ctr images import, k3s ctr images import and kind load image-archive take.",
		Example: "  culvert image save culvert.tar\n  culvert image save - | ssh node sudo k3s ctr images import -",
		Args:    cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, im *image.Image, name, file string) error {
		if file == "-" {
			return im.Save(cmd.OutOrStdout(), name)
		}
		return saveImage(file, func(w io.Writer) error { return im.Save(w, name) })
	})
}

// saveImage writes a file which every user may read, because nothing in an image is secret. It
// takes the place of no device and no pipe, such as /dev/stdout.
func saveImage(file string, save func(io.Writer) error) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: is no file; name one, or - for standard output", file)
	}
	if err := new(durable.Disk).Replace(file, save); err != nil {
		return err
	}
	return os.Chmod(file, 0o644)
}

func newImageLoadCommand() *cobra.Command {
	return addArchive(&cobra.Command{
		Use:   "load",
		Short: "Put the image into the containerd of this machine",
		Long: "Put the image into the containerd of this machine, by ctr or by k3s, so that pods with this\n" +
			"image and the pull policy IfNotPresent start here. Other container runtimes take what image\n" +
			"save writes.",
		Example: "  sudo culvert image load",
		Args:    cobra.NoArgs,
	}, func(cmd *cobra.Command, im *image.Image, name, _ string) error { return loadImage(cmd, im, name) })
}

// addArchive makes cmd pack the image, pass it and its name to do with the argument, and print the
// name.
func addArchive(cmd *cobra.Command, do func(*cobra.Command, *image.Image, string, string) error) *cobra.Command {
	var binaries []string
	var name string
	addBinaries(cmd, &binaries)
	cmd.Flags().StringVar(&name, "name", "",
		"`REF` of the image (default: localhost/culvert with this program's version)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		im, tag, err := packed(binaries, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if name == "" {
			name = "localhost/culvert:" + tag
		}
		file := cmd.Flags().Arg(0)
		if err := do(cmd, im, name, file); err != nil || file == "-" {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), name)
		return err
	}
	return cmd
}

func addBinaries(cmd *cobra.Command, binaries *[]string) {
	cmd.Flags().StringArrayVar(binaries, "binary", nil,
		"`FILE` to pack, once for each architecture (default: this program, and "+
			"culvert-linux-ARCH of the same build beside it)")
}

// packed packs the named binaries, or else this program and what lies beside it for other
// architectures. It returns the tag for an image without one.
func packed(names []string, warn io.Writer) (*image.Image, string, error) {
	var all []*image.Binary
	for _, name := range names {
		b, err := image.Read(name)
		if err != nil {
			return nil, "", fmt.Errorf("--binary: %w", err)
		}
		all = append(all, b)
	}
	if len(names) == 0 {
		own, err := image.Read("/proc/self/exe") // also where the file has been replaced since
		if err != nil {
			return nil, "", fmt.Errorf("this program cannot be packed: %w; or name another one with --binary of culvert image", err)
		}
		all = append(all, own)
		self, err := os.Executable()
		if err != nil {
			return nil, "", err
		}
		for _, arch := range []string{"amd64", "arm64"} {
			name := filepath.Join(filepath.Dir(self), "culvert-linux-"+arch)
			if _, err := os.Stat(name); err != nil || arch == own.Arch {
				continue
			}
			other, err := image.Read(name)
			switch {
			case err != nil:
				return nil, "", fmt.Errorf("%w; or name the binaries with --binary of culvert image", err)
			case !other.SameBuild(own):
				fmt.Fprintf(warn, "%s is of another build, and is not packed\n", name)
			default:
				all = append(all, other)
			}
		}
	}
	im, err := image.New(all...)
	return im, all[0].Tag(), err
}

// loadImage hands the archive to the program that containerd or k3s comes with.
func loadImage(cmd *cobra.Command, im *image.Image, name string) error {
	program, args := "ctr", []string{"--namespace", "k8s.io", "images", "import", "-"}
	if _, err := exec.LookPath(program); err != nil {
		program, args = "k3s", append([]string{"ctr"}, args...)
		if _, err := exec.LookPath(program); err != nil {
			return errors.New("neither ctr nor k3s is in PATH; write an archive with culvert image save, and load it " +
				"with the program of your container runtime")
		}
	}
	archive, input := io.Pipe()
	importer := exec.CommandContext(cmd.Context(), program, args...)
	importer.Stdin, importer.Stdout, importer.Stderr = archive, cmd.ErrOrStderr(), cmd.ErrOrStderr()
	saved := make(chan error, 1)
	go func() {
		err := im.Save(input, name)
		input.CloseWithError(err)
		saved <- err
	}()
	err := importer.Run()
	archive.Close()
	if err != nil {
		return fmt.Errorf("%s: %w; does this user reach containerd's socket?", importer, err)
	}
	return <-saved
}
