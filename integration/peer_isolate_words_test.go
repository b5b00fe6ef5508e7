package integration

import (
	"strings"
	"testing"
)

// TestLastWords: what failed is found in front of any amount of what programs have written.
func TestLastWords(t *testing.T) {
	out := `=== RUN   TestKubeStandby
    kube_gateway_test.go:169: TCP rome-pod1 → milan-pod1
    kube_standby_test.go:184: SIGTERM: a connection is lost: EOF
        and a second line
    peer_host_test.go:188: output of rome-gw: culvert gateway:
` + strings.Repeat("        {\"level\":\"info\"}\n        gateway.go:12: no test said this\n", 40) +
		`    peer_host_test.go:188: output of rome-api: etcd --a:
        {"level":"warn"}
--- FAIL: TestKubeStandby (19.16s)
panic: after it
`
	want := "    kube_gateway_test.go:169: TCP rome-pod1 → milan-pod1\n    kube_standby_test.go:184: SIGTERM: a connection is lost: EOF\npanic: after it"
	if got := string(lastWords([]byte(out))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := string(lastWords([]byte(strings.Repeat("    a_test.go:1: again\n", 20)))); strings.Count(got,
		"again") != 9 {
		t.Errorf("%d lines, want the last 9", strings.Count(got, "again"))
	}
}
