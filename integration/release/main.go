// Command release makes what a release page needs from the programs in dist: archives, packages,
// the image, the chart, lists of components, notes and checksums. make release runs it. The same
// commit gives the same bytes: times are the commit's, and lists are sorted.
package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

var (
	archs    = []string{"amd64", "arm64"}
	programs = []string{"culvert", "culvert-lab"}
)

// file is a file of an archive or a package.
type file struct {
	name string
	mode os.FileMode
	text []byte
}

func byName(a, b file) int { return strings.Compare(a.name, b.name) }

type release struct {
	root, dist, temp string
	version          string // without v
	revision         string
	made             time.Time // the commit's
	tags             string    // of the build
	man, completions []file
	licences         []byte // of all dependencies
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: release ROOT, the folder of culvert's tree, with its programs in dist")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	r := &release{root: root, dist: filepath.Join(root, "dist")}
	if r.temp, err = os.MkdirTemp("", "culvert-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.temp)
	for _, step := range []func() error{
		r.identify, r.describe, r.license, r.archives, r.packages, r.image, r.chart, r.components, r.notes, r.sums,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func program(name, arch string) string { return name + "-linux-" + arch }

// identify reads what the programs say of their build, which has to be the same of all.
func (r *release) identify() error {
	for _, name := range programs {
		for _, arch := range archs {
			p := filepath.Join(r.dist, program(name, arch))
			info, err := buildinfo.ReadFile(p)
			if err != nil {
				return err
			}
			settings := make(map[string]string)
			for _, s := range info.Settings {
				settings[s.Key] = s.Value
			}
			version := strings.TrimPrefix(info.Main.Version, "v")
			made, err := time.Parse(time.RFC3339, settings["vcs.time"])
			if err != nil {
				return fmt.Errorf("%s does not say of which commit it is; build it in a clone, by make release", p)
			}
			if r.version != "" && (version != r.version || settings["vcs.revision"] != r.revision) {
				return fmt.Errorf("%s is of another commit than the others; build all of them by make release", p)
			}
			r.version, r.revision, r.made, r.tags = version, settings["vcs.revision"], made.UTC(), settings["-tags"]
		}
	}
	return nil
}

// describe makes the pages of the manual and the completions, by running the programs.
func (r *release) describe() error {
	if !slices.Contains(archs, runtime.GOARCH) || runtime.GOOS != "linux" {
		return fmt.Errorf("the programs cannot run here, on %s/%s; make a release on linux/amd64 or linux/arm64",
			runtime.GOOS, runtime.GOARCH)
	}
	for _, name := range programs {
		if err := os.Symlink(filepath.Join(r.dist, program(name, runtime.GOARCH)), r.own(name)); err != nil {
			return err
		}
	}
	for _, name := range programs {
		pages, err := r.manual(name)
		if err != nil {
			return err
		}
		r.man = append(r.man, pages...)
		for shell, as := range map[string]string{"bash": name, "zsh": "_" + name, "fish": name + ".fish"} {
			script, err := output(r.own(name), "completion", shell)
			if err != nil {
				return err
			}
			r.completions = append(r.completions, file{shell + "/" + as, 0o644, script})
		}
	}
	slices.SortFunc(r.completions, byName)
	return nil
}

// own is a program for this machine.
func (r *release) own(name string) string { return filepath.Join(r.temp, name) }

// output runs a program, in an environment that does not change what it prints.
func output(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LC_ALL=C"}
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, diag.Bytes())
	}
	return out, nil
}

// image writes the image of both architectures as an archive.
func (r *release) image() error {
	args := []string{"image", "save", r.path("culvert-%s-image.tar", r.version)}
	for _, arch := range archs {
		args = append(args, "--binary", filepath.Join(r.dist, program("culvert", arch)))
	}
	_, err := output(r.own("culvert"), args...)
	return err
}

// path returns the path of a file of the release. In a URL, the + of a version would need an
// escape.
func (r *release) path(format string, args ...any) string {
	return filepath.Join(r.dist, strings.ReplaceAll(fmt.Sprintf(format, args...), "+", "-"))
}

// read reads a file of the tree.
func (r *release) read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(r.root, name)) }
