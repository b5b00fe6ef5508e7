package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents)`)

// license collects the licences of every module of which the programs are made, and of Go: those in
// the folders of the packages that are linked, and in the folders above them.
func (r *release) license() error {
	of := make(map[string][]string) // modules, by the text
	for _, arch := range archs {
		modules, err := r.linked(arch)
		if err != nil {
			return err
		}
		for _, module := range slices.Sorted(maps.Keys(modules)) {
			texts := modules[module]
			if len(texts) == 0 {
				return fmt.Errorf("%s has no licence file; find its licence, and make this program read it", module)
			}
			for text := range texts {
				if !slices.Contains(of[text], module) {
					of[text] = append(of[text], module)
				}
			}
		}
	}
	var all strings.Builder
	fmt.Fprintf(&all, "The programs of culvert %s are made of these modules as well. "+
		"LICENSE has culvert's own licence.\n", r.version)
	texts := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(slices.Compare(of[a], of[b]), strings.Compare(a, b))
	})
	for _, text := range texts {
		fmt.Fprintf(&all, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(of[text], "\n"), text)
	}
	r.licences = []byte(all.String())
	return nil
}

// linked returns the modules of the programs, each with the texts of its licences. It compares them
// with what the programs say.
func (r *release) linked(arch string) (map[string]map[string]bool, error) {
	cmd := exec.Command("go", "list", "-deps", "-json=Dir,Module,Standard", "-tags="+r.tags,
		"./cmd/culvert", "./cmd/culvert-lab")
	cmd.Dir, cmd.Stderr = r.root, os.Stderr
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]bool)
	add := func(module, root, dir string) error {
		if all[module] == nil {
			all[module] = make(map[string]bool)
		}
		for ; strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					return err
				}
				all[module][strings.TrimSpace(string(text))] = true
			}
		}
		return nil
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir      string
			Standard bool
			Module   *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		switch root := strings.TrimSpace(string(goroot)); {
		case p.Standard:
			err = add("Go", root, p.Dir)
		case !p.Module.Main:
			err = add(p.Module.Path+" "+p.Module.Version, p.Module.Dir, p.Dir)
		}
		if err != nil {
			return nil, err
		}
	}
	said := map[string]bool{"Go": true}
	for _, name := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(r.dist, program(name, arch)))
		if err != nil {
			return nil, err
		}
		for _, m := range info.Deps {
			said[m.Path+" "+m.Version] = true
		}
	}
	if listed := slices.Sorted(maps.Keys(all)); !slices.Equal(listed, slices.Sorted(maps.Keys(said))) {
		return nil, fmt.Errorf("the programs for %s are made of other modules than this tree: %q, %q", arch,
			slices.Sorted(maps.Keys(said)), listed)
	}
	return all, nil
}

// components writes a CycloneDX list of components for each program.
func (r *release) components() error {
	for _, name := range programs {
		for _, arch := range archs {
			p := program(name, arch)
			cmd := exec.Command("go", "tool", "cyclonedx-gomod", "bin", "-json", "-noserial", "-notimestamp",
				"-output", r.path("%s.cdx.json", p), filepath.Join(r.dist, p))
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", cmd, err, out)
			}
		}
	}
	return nil
}
