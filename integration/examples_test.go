package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// asRoot runs a command line of an example inside a host, where this process is root:
// one that ends with & until the test ends.
func (h *peerHost) asRoot(line string) {
	h.t.Helper()
	command, background := strings.CutSuffix(strings.ReplaceAll(line, "sudo ", ""), " &")
	if background {
		h.start(nil, "sh", "-c", "exec "+command)
		return
	}
	eventually(h.t, line, func() error {
		_, err := h.try("", "sh", "-c", command)
		if err != nil && !strings.Contains(line, " ping ") {
			h.t.Fatal(err)
		}
		return err
	})
}

// TestInitHere: the commands that culvert init --here prints, as they stand, make two
// clusters whose pods reach each other, and remove them.
func TestInitHere(t *testing.T) {
	isolated(t, func(t *testing.T) {
		h := newPeerHost(t, "machine")
		dir := filepath.Join(t.TempDir(), "d")
		printed := h.run(os.Getenv(binaryEnv), "init", dir, "--here")
		var commands []string
		for line := range strings.Lines(printed) {
			if command, ok := strings.CutPrefix(line, "    "); ok {
				commands = append(commands, strings.TrimSpace(command))
			}
		}
		if len(commands) < 7 || len(commands) > 9 {
			t.Fatalf("%d commands:\n%s", len(commands), printed)
		}
		for _, command := range commands {
			h.asRoot(command)
		}
		if left := h.run("ip", "-brief", "link"); strings.Contains(left, "cv-") {
			t.Errorf("left behind: %s", left)
		}
	}, programs("ping", "ping"))
}
