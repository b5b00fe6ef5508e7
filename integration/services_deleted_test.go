package integration

import (
	"strings"
	"testing"
)

// TestServicesDeleted deletes Services under TCP connections from the node, a pod and outside, to
// cluster addresses and node ports, over both families. They continue with their endpoint, also
// after another Service has taken address and port (whose endpoint gets the new connections), after
// a take-over and after a restart. When they have ended, no route leads the node port to the device
// any more.
func TestServicesDeleted(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		l.state = t.TempDir()
		another := served("another", "tcp", 20, "", "pa")
		l.start(served("web", "tcp", 10, "", "pb"), another)
		var streams []*serviceStream
		for _, from := range []*peerHost{l.n1, l.c, l.out} {
			for _, to := range []string{"172.18.0.2:30010", "[fd18::2]:30010"} {
				streams = append(streams, l.stream(from, "tcp", to))
			}
			if from != l.out {
				streams = append(streams, l.stream(from, "tcp", "10.96.0.10:80"),
					l.stream(from, "tcp", "[fd96::10]:80"))
			}
		}
		alive := func(when string) {
			t.Helper()
			l.all(streams, when, (*serviceStream).alive)
		}
		l.write(another)
		l.reload("configuration applied", 1)
		alive("after the Service was deleted")
		if _, _, err := l.ask(l.out, "tcp", "172.18.0.2:30010"); err == nil {
			t.Error("the node port of the Service that was deleted answers")
		}
		l.write(served("next", "tcp", 10, "", "pa"))
		l.reload("configuration applied", 2)
		alive("after another Service has taken its place")
		for _, to := range []string{"172.18.0.2:30010", "10.96.0.10:80"} {
			if who, _, err := l.ask(l.n1, "tcp", to); who != "pa" || err != nil {
				t.Errorf("the Service that has taken %s: %q answers, %v", to, who, err)
			}
		}
		l.write(another)
		l.reload("configuration applied", 3)
		l.takeOver()
		alive("after a take-over")
		l.node.stop()
		l.start(another)
		alive("after a restart")
		led := func() bool { return strings.Contains(l.n1.run("ip", "rule"), "dport 30010") }
		if !led() {
			t.Error("no rule leads the node port of living connections to the device")
		}
		for _, s := range streams {
			s.Close()
		}
		await(t, "the rule of a node port without Service or connections to go", func() bool { return !led() })
	}, programs("ip", "ip"))
}
