package integration

import (
	"strings"
	"testing"

	"culvert/integration/need"
)

// TestResults: the reasons for failures come last, after everything else that a failed package and
// others print.
func TestResults(t *testing.T) {
	need.Programs(t, "awk", "awk")
	for _, tt := range []struct{ name, says, want string }{
		{"all is well", "=== RUN   TestA\n    a_test.go:1: fine\n--- PASS: TestA (0.00s)\nPASS\nok  \tculvert/a\t0.1s\n", "ok  \tculvert/a\t0.1s\n"},
		{"skipped", "=== RUN   TestA\n    a_test.go:1: probe tun: refused\n--- SKIP: TestA (0.00s)\nPASS\nok  \tculvert/a\t0.1s\n",
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
