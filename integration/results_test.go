package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestResults: the reasons for failures come last, after everything else that a failed package and
// others print.
func TestResults(t *testing.T) {
	need.Programs(t, "awk", "awk")
	for _, tt := range []struct{ name, says, want string }{
		{"all is well",
			"=== RUN   TestA\n    a_test.go:1: fine\n--- PASS: TestA (0.00s)\nPASS\nok  \tculvert/a\t0.1s\n",
			"ok  \tculvert/a\t0.1s\n"},
		{"skipped",
			"=== RUN   TestA\n    a_test.go:1: probe tun: refused\n--- SKIP: TestA (0.00s)\nPASS\nok  \tculvert/a\t0.1s\n",
			"SKIP: TestA a_test.go:1: probe tun: refused\nok  \tculvert/a\t0.1s\n"},
		{"a subtest failed",
			"=== RUN   TestA\n=== RUN   TestA/b\n    a_test.go:1: 3, want 4\n        of 5\n=== RUN   TestA/bb\n    a_test.go:1: 4\n=== NAME  TestA\n    a_test.go:9: a log\n" +
				"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n    --- PASS: TestA/bb (0.00s)\nFAIL\nFAIL\tculvert/a\t0.1s\nok  \tculvert/b\t0.1s\nFAIL\n",
			"=== RUN   TestA\n=== RUN   TestA/b\n    a_test.go:1: 3, want 4\n        of 5\n=== RUN   TestA/bb\n    a_test.go:1: 4\n=== NAME  TestA\n    a_test.go:9: a log\n" +
				"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n    --- PASS: TestA/bb (0.00s)\nFAIL\nFAIL\tculvert/a\t0.1s\nok  \tculvert/b\t0.1s\nFAIL\n" +
				"failed: culvert/a TestA/b\n    a_test.go:1: 3, want 4\n        of 5\n"},
		{"two packages failed",
			"=== RUN   TestA\n    a_test.go:1: once\n--- FAIL: TestA (0.00s)\nFAIL\tculvert/a\t0.1s\n=== RUN   TestA\n    a_test.go:1: twice\n--- FAIL: TestA (0.00s)\nFAIL\tculvert/b\t0.1s\n",
			"=== RUN   TestA\n    a_test.go:1: once\n--- FAIL: TestA (0.00s)\nFAIL\tculvert/a\t0.1s\n=== RUN   TestA\n    a_test.go:1: twice\n--- FAIL: TestA (0.00s)\nFAIL\tculvert/b\t0.1s\n" +
				"failed: culvert/a TestA\n    a_test.go:1: once\nfailed: culvert/b TestA\n    a_test.go:1: twice\n"},
		{"it does not compile", "# culvert/a\na.go:1:1: undefined: x\nFAIL\tculvert/a [build failed]\n",
			"# culvert/a\na.go:1:1: undefined: x\nFAIL\tculvert/a [build failed]\nfailed: culvert/a \n"},
		{"it crashed", "=== RUN   TestA\npanic: test timed out after 1s\n\ngoroutine 1\nFAIL\tculvert/a\t1s\n",
			"=== RUN   TestA\npanic: test timed out after 1s\n\ngoroutine 1\nFAIL\tculvert/a\t1s\nfailed: culvert/a panic: test timed out after 1s\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := need.Command(t, "awk", "-f", "../.ci/results.awk")
			cmd.Stdin = strings.NewReader(tt.says)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != tt.want {
				t.Errorf("%v\n%s\nwant\n%s", err, out, tt.want)
			}
		})
	}
}

// TestOnceMore: a test that fails once and passes alone is named as flaky; all other failures fail
// the run.
func TestOnceMore(t *testing.T) {
	need.Programs(t, "shell", "bash", "awk", "sed", "grep", "sort", "tee", "mktemp", "wc", "cut", "paste")
	for _, tt := range []struct {
		name, said string
		alone      int // exit status of the test that runs once more
		verb, want string
	}{
		{"it passes alone", "    a_test.go:1: 3, want 4\nfailed: culvert/a TestA/b\n    a_test.go:1: 3, want 4\n", 0,
			"", "flaky: culvert/a TestA\nfailed: culvert/a TestA/b\n    a_test.go:1: 3, want 4\n"},
		{"two pass alone", "failed: culvert/a TestA/b\nfailed: culvert/a TestA/c\nfailed: culvert/b TestB\n", 0,
			"", "flaky: culvert/a TestA\n"},
		{"it fails alone", "failed: culvert/a TestA\n", 1, "settle", "once more, alone: culvert/a TestA\n"},
		{"three fail", "failed: culvert/a TestA\nfailed: culvert/a TestB\nfailed: culvert/b TestA\n", 0, "settle",
			"more than two tests failed"},
		{"a crash", "failed: culvert/a panic: test timed out after 1s\n", 0, "try", ""},
		{"it does not compile", "failed: culvert/a \n", 0, "try", ""},
		{"a data race", "WARNING: DATA RACE\nfailed: culvert/a TestA\n", 0, "try", ""},
		{"make fails", "make: no go command\n", 0, "try", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			// It fails as make test does; RUN and PACKAGES ask it for one test.
			target := filepath.Join(dir, "target")
			script := "#!/usr/bin/env bash\n[ $# = 0 ] || { echo \"$*\" >>" + dir + "/alone; exit " +
				strconv.Itoa(tt.alone) + "; }\ncat " + dir + "/said\nexit 1\n"
			need.NoError(t, os.WriteFile(target, []byte(script), 0o700))
			need.NoError(t, os.WriteFile(filepath.Join(dir, "said"), []byte(tt.said), 0o600))
			failed, last := "", ""
			for _, verb := range []string{"try", "settle", "end"} {
				args := []string{"../.ci/once-more", verb, filepath.Join(dir, "tests")}
				if verb == "try" {
					args = append(args, target)
				}
				out, err := need.Command(t, "bash", args...).CombinedOutput()
				last = string(out)
				if err != nil {
					failed = verb
					break
				}
			}
			if failed != tt.verb || !strings.Contains(last, tt.want) {
				t.Errorf("%q fails, want %q; it says\n%s\nwant\n%s", failed, tt.verb, last, tt.want)
			}
			alone, _ := os.ReadFile(filepath.Join(dir, "alone"))
			if runs := strings.Count(string(alone), "RUN=^TestA$"); (tt.verb == "" || tt.alone == 1) != (runs == 1) {
				t.Errorf("TestA ran %d times alone: %q", runs, alone)
			}
		})
	}
}
