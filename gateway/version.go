package gateway

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version says which build of culvert this is. The Go command stamps it from the
// repository that it built from.
type Version struct {
	Version  string `json:"version"`            // of the module; "(devel)" outside a repository
	Revision string `json:"revision,omitempty"` // commit
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"`           // the tree had changes that are in no commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ReadVersion returns that of the running program.
func ReadVersion() Version {
	v := Version{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String is one line for a terminal and for a bug report.
func (v Version) String() string {
	s := "culvert " + v.Version
	if v.Revision != "" {
		s += fmt.Sprintf(", commit %.12s of %s", v.Revision, v.Time)
	}
	if v.Modified {
		s += " with changes"
	}
	return s + ", " + v.Go + ", " + v.Platform
}
