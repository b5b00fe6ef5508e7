package state

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// believable returns an error if a user other than this process's and root could have written to a
// place: writing connections there lets packets through, and reading an identity reveals the next
// ports.
//
// A group of this process may write: Kubernetes arranges that with fsGroup, and leaves the owner
// unchanged.
func believable(place string, info fs.FileInfo) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	groups, _ := os.Getgroups()
	return distrust(place, s, os.Geteuid(), append(groups, os.Getegid()))
}

func distrust(place string, s *syscall.Stat_t, uid int, groups []int) error {
	const writeGroup, writeOthers = 0o020, 0o002
	switch {
	case s.Uid != 0 && int(s.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d, who could have written anything there, and this process is user %d; remove it: this process makes it again; "+
			"or, if you trust what it holds: chown -R %[3]d %[1]s", place, s.Uid, uid)
	case s.Mode&writeOthers != 0:
		return fmt.Errorf("%s has mode %04o: every user could have written there; remove it: this process makes it again; or, if you trust what it holds: chmod -R o-w %[1]s",
			place, s.Mode&0o7777)
	case s.Mode&writeGroup != 0 && !slices.Contains(groups, int(s.Gid)):
		return fmt.Errorf("%s has mode %04o and group %d, which this process is not in: that group could have written there; remove it: this process makes it again; "+
			"or, if you trust what it holds: chmod -R g-w %[1]s", place, s.Mode&0o7777, s.Gid)
	}
	return nil
}
