package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// Units are installed, not started, because a gateway and a node need their files first. They are
// stopped before their program is removed, but not for another version. They are disabled when
// nobody wants them back, and state then goes, but for what the user wrote to /etc/culvert. The
// first argument of a script is a word of dpkg, or a number of rpm.
const (
	afterInstall = "#!/bin/sh\n[ ! -d /run/systemd/system ] || systemctl daemon-reload\n"
	beforeRemove = `#!/bin/sh
case $1 in
remove | 0) [ ! -d /run/systemd/system ] || systemctl stop 'culvert-gateway@*.service' culvert-node.service ;;
esac
`
	afterRemove = `#!/bin/sh
case $1 in
purge | 0) rm -f /etc/systemd/system/*.wants/culvert-gateway@*.service /etc/systemd/system/*.wants/culvert-node.service ;;
esac
[ "$1" != purge ] || rm -rf /var/lib/culvert /var/lib/private/culvert
[ ! -d /run/systemd/system ] || systemctl daemon-reload
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
	shared := within("/usr/lib/systemd/system/", units)
	for _, f := range r.man {
		if f.text, err = zipped(f.text); err != nil {
			return err
		}
		f.name = "/usr/share/man/man1/" + f.name + ".gz"
		shared = append(shared, f)
	}
	for _, arch := range archs {
		for _, kind := range []string{"deb", "rpm"} {
			all := append(shared[:len(shared):len(shared)], r.placed(kind)...)
			licences := map[string]string{"deb": "/usr/share/doc/culvert/copyright",
				"rpm": "/usr/share/licenses/culvert/LICENSE"}
			all = append(all, file{licences[kind], 0o644, licence},
				file{filepath.Dir(licences[kind]) + "/THIRD-PARTY.txt", 0o644, r.licences})
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
		Section: "net", Priority: "optional", Maintainer: "The developers of culvert", License: "Apache-2.0",
		Description:     "carries pod traffic between Kubernetes clusters in user space",
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
