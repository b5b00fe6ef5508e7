package control

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// podDirectory is a pod's volume for the files of its gateway, whatever its user.
const podDirectory = "/run/culvert"

// runtimeDirectory is the folder for the sockets of this user's programs.
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

// serviceDirectory is the folder that the service manager provides for sockets, "" without one
// (systemd.exec(5), RuntimeDirectory).
func serviceDirectory() string {
	first, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	return first
}

// DefaultPath is the default socket path of this user's gateway. Without the cluster's name, it
// contains only the peer's.
func DefaultPath(cluster, peer string) string {
	name := peer
	if cluster != "" {
		name = cluster + "-" + peer
	}
	dir := serviceDirectory()
	if dir == "" {
		dir = filepath.Join(runtimeDirectory(), "culvert")
	}
	return filepath.Join(dir, name+".sock")
}

// Paths returns the sockets in the default folders of gateways of this user, of root, of services
// and of labs. Some may be left over from killed processes.
func Paths() (paths []string) {
	for _, dir := range []string{runtimeDirectory(), "/run"} {
		for _, pattern := range []string{"culvert/*.sock", "culvert/*/*.sock", "culvert/lab/*/culvert/*.sock"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are good
			paths = append(paths,
				slices.DeleteFunc(found, func(path string) bool {
					return filepath.Dir(path) == filepath.Join(dir,
						nodeFolder)
				})...)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
