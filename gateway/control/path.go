package control

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// podDirectory is where a pod has a volume for what its gateway keeps, whatever user that is.
const podDirectory = "/run/culvert"

// runtimeDirectory is where programs of this user keep their sockets.
func runtimeDirectory() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	const writable = 2 // access(2): W_OK
	if os.Getuid() == 0 || syscall.Access(podDirectory, writable) == nil {
		return filepath.Dir(podDirectory)
	}
	return filepath.Join(os.TempDir(), "culvert-"+strconv.Itoa(os.Getuid()))
}

// DefaultPath is where a gateway of this user has its socket unless it is told another place.
// Who does not know its cluster has the peer's name alone.
func DefaultPath(cluster, peer string) string {
	name := peer
	if cluster != "" {
		name = cluster + "-" + peer
	}
	return filepath.Join(runtimeDirectory(), "culvert", name+".sock")
}

// Paths returns the sockets in the places where gateways of this user and of root, and those
// of labs, have them. Some may be left over from processes that were killed.
func Paths() (paths []string) {
	for _, dir := range []string{runtimeDirectory(), "/run"} {
		for _, pattern := range []string{"culvert/*.sock", "culvert/lab/*/culvert/*.sock"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are good
			paths = append(paths, found...)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
