package control

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// ReadVersion returns the version of the running program.
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
