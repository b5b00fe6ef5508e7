package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/integration/need"
)

// A mistake is one edit of a valid file, and what --check says about it.
type mistake struct {
	File       string `json:"file"`
	Old        string `json:"old"`
	New        string `json:"new"`
	Path       string `json:"path"` // "" = the file is not YAML, so it has no paths
	Says       string `json:"says"` // regular expression; includes the remedy
	Unknowable string `json:"unknowable"`
}

// TestMistakes: --check names each typical mistake of testdata/mistakes.yaml by file, line, column
// and path, and says what to do. It accepts only mistakes that no machine could detect.
func TestMistakes(t *testing.T) {
	binary, err := culvertBinary()
	need.NoError(t, err)
	text, err := os.ReadFile("testdata/mistakes.yaml")
	need.NoError(t, err)
	var list struct {
		Files    map[string]string `json:"files"`
		Mistakes []mistake         `json:"mistakes"`
	}
	need.NoError(t, yaml.UnmarshalStrict(text, &list))
	dir, own := mistakesFolder(t), ownAddress(t)
	check := func(kind, text string) (said string, accepted bool) {
		t.Helper()
		name := filepath.Join(dir, kind+".yaml")
		need.NoError(t, os.WriteFile(name, []byte(strings.ReplaceAll(text, "OWN", own)), 0o600))
		out, err := need.Command(t, binary, kind, "--check", "--config", name).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() != 2) {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
		return strings.ReplaceAll(string(out), dir+"/", ""), err == nil
	}
	good := make(map[string]string)
	for kind, text := range list.Files {
		said, accepted := check(kind, text)
		if good[kind] = said; !accepted || kind == "gateway" && strings.Contains(said, "warning") {
			t.Fatalf("the good %s file: %s", kind, said)
		}
	}
	named := 0
	for i, m := range list.Mistakes {
		if n := strings.Count(list.Files[m.File], m.Old); n == 0 {
			t.Fatalf("mistake %d: %q is not in the file", i, m.Old)
		}
		said, accepted := check(m.File, strings.Replace(list.Files[m.File], m.Old, m.New, 1))
		if m.Unknowable != "" {
			if said != good[m.File] {
				t.Errorf("%q is not unknowable: %s", m.New, said)
			}
			continue
		}
		at := fmt.Sprintf(`(?m)^(culvert|warning): %s\.yaml:[1-9][0-9]*:[1-9][0-9]*: `, m.File)
		if m.Path != "" {
			at += regexp.QuoteMeta(m.Path) + ": "
		}
		if want := regexp.MustCompile(at + ".*" + m.Says); !want.MatchString(said) || want.MatchString(good[m.File]) {
			t.Errorf("%q → %q (accepted: %v):\n%swant %s", m.Old, m.New, accepted, said, want)
			continue
		}
		named++
	}
	t.Logf("%d of %d mistakes are named", named, len(list.Mistakes))
	if len(list.Mistakes) != 61 || named < 57 {
		t.Error("want 57 of 61")
	}
}

// mistakesFolder holds the key files that the files name.
func mistakesFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	rome := newKeyPair(t)
	for name, text := range map[string]string{
		"rome.key": rome.private, "open.key": rome.private, "rome.pub": rome.public,
		"milan.pub": newKeyPair(t).public, "paris.pub": newKeyPair(t).public,
	} {
		need.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	need.NoError(t, os.Chmod(filepath.Join(dir, "open.key"), 0o644))
	return dir
}

// ownAddress returns an address of this machine.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	need.NoError(t, err)
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	need.Kernel(t, "own-address", errors.New("this machine has none but the loopback's"))
	return ""
}
