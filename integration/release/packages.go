package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// Units are installed, not started, because a gateway and a node need their files first. They are
// stopped before their program is removed, but not for another version. They are disabled when
// nobody wants them back, and state then goes, but for what the user wrote to /etc/culvert. The
// first argument of a script is a word of dpkg, or a number of rpm. What systemd refuses keeps
// nobody from installing or removing a package.
const (
	afterInstall = "#!/bin/sh\nset -e\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n"
	beforeRemove = `#!/bin/sh
set -e
case $1 in
remove | 0) [ ! -d /run/systemd/system ] || systemctl stop 'culvert-gateway@*.service' culvert-node.service || true ;;
esac
`
	afterRemove = `#!/bin/sh
set -e
case $1 in
purge | 0) rm -f /etc/systemd/system/*.wants/culvert-gateway@*.service /etc/systemd/system/*.wants/culvert-node.service ;;
esac
[ "$1" != purge ] || rm -rf /var/lib/culvert /var/lib/private/culvert
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
`
)

const (
	// Debian wants an address, and the developers have none.
	maintainer  = "The developers of culvert <noreply@culvert.invalid>"
	description = `carries pod traffic between Kubernetes clusters in user space
culvert joins clusters whose pods may have the same addresses. A gateway
embeds WireGuard, decodes Geneve and translates addresses in one process
without privileges. This package has the programs, for clusters and for
machines without Kubernetes, and the units of systemd.`
	copyright = `Copyright 2026 the developers of culvert

Licensed under the Apache License, Version 2.0; on Debian systems, its text is
in /usr/share/common-licenses/Apache-2.0.

THIRD-PARTY.txt in this folder has the notices of all modules of which the
programs are made as well.
`
)

// packages writes a .deb and an .rpm for each architecture.
func (r *release) packages() error {
	units, err := r.units("/usr/bin")
	if err != nil {
		return err
	}
	licence, err := r.read("LICENSE")
	if err != nil {
		return err
	}
	changes, err := zipped(fmt.Appendf(nil, "culvert (%s) unstable; urgency=medium\n\n"+
		"  * See the release notes.\n\n -- %s  %s\n", r.version, maintainer, r.made.Format(time.RFC1123Z)))
	if err != nil {
		return err
	}
	shared := within("/usr/lib/systemd/system/", units)
	for _, f := range r.man {
		if f.text, err = zipped(f.text); err != nil {
			return err
		}
		f.name = "/usr/share/man/man1/" + f.name + ".gz"
		shared = append(shared, f)
	}
	for _, arch := range archs {
		documents := map[string][]file{
			"deb": {{"/usr/share/doc/culvert/copyright", 0o644, []byte(copyright)},
				{"/usr/share/doc/culvert/THIRD-PARTY.txt", 0o644, r.licences},
				{"/usr/share/doc/culvert/changelog.gz", 0o644, changes}},
			"rpm": {{"/usr/share/licenses/culvert/LICENSE", 0o644, licence},
				{"/usr/share/licenses/culvert/THIRD-PARTY.txt", 0o644, r.licences}},
		}
		for _, kind := range []string{"deb", "rpm"} {
			all := append(shared[:len(shared):len(shared)], r.placed(kind)...)
			all = append(all, documents[kind]...)
			for _, name := range programs {
				text, err := os.ReadFile(filepath.Join(r.dist, program(name, arch)))
				if err != nil {
					return err
				}
				all = append(all, file{"/usr/bin/" + name, 0o755, text})
			}
			if err := r.pack(kind, arch, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// placed are the completions where a distribution's shells find them.
func (r *release) placed(kind string) (all []file) {
	folders := map[string]string{"bash": "bash-completion/completions", "fish": "fish/vendor_completions.d",
		"zsh": map[string]string{"deb": "zsh/vendor-completions", "rpm": "zsh/site-functions"}[kind]}
	for _, f := range r.completions {
		shell, name, _ := strings.Cut(f.name, "/")
		all = append(all, file{"/usr/share/" + folders[shell] + "/" + name, f.mode, f.text})
	}
	return all
}

func zipped(text []byte) ([]byte, error) {
	var to bytes.Buffer
	w, err := gzip.NewWriterLevel(&to, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return to.Bytes(), err
}

// pack writes a package. Its tool takes files alone.
func (r *release) pack(kind, arch string, all []file) error {
	staged, err := os.MkdirTemp(r.temp, "")
	if err != nil {
		return err
	}
	put := func(f file) (string, error) {
		name := filepath.Join(staged, f.name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return "", err
		}
		return name, os.WriteFile(name, f.text, f.mode)
	}
	contents := files.Contents{{Destination: "/etc/culvert", Type: files.TypeDir,
		FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: r.made}}}
	for _, f := range all {
		source, err := put(f)
		if err != nil {
			return err
		}
		contents = append(contents, &files.Content{Source: source, Destination: f.name,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.made}})
	}
	info := &nfpm.Info{Name: "culvert", Arch: arch, Platform: "linux", Version: r.version, VersionSchema: "semver",
		Section: "net", Priority: "optional", Maintainer: maintainer, License: "Apache-2.0", Description: description,
		DisableGlobbing: true, MTime: r.made}
	info.Contents = contents
	info.RPM.BuildHost = "localhost"
	for _, s := range []struct {
		name, text string
		to         *string
	}{{"after", afterInstall, &info.Scripts.PostInstall}, {"before", beforeRemove, &info.Scripts.PreRemove},
		{"removed", afterRemove, &info.Scripts.PostRemove}} {
		if *s.to, err = put(file{"scripts/" + s.name, 0o755, []byte(s.text)}); err != nil {
			return err
		}
	}
	info = nfpm.WithDefaults(info)
	packager, err := nfpm.Get(kind)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.dist, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}
