package monitor

import (
	"strings"
	"testing"
	"time"

	"culvert/geneve/udp"
)

// TestProgress: a path is healthy if it takes what arrives, or if nothing arrives.
func TestProgress(t *testing.T) {
	type second struct {
		received uint64
		waits    bool
	}
	for _, tt := range []struct {
		name  string
		at    func(s int) second
		stuck string // after 30 s
	}{
		{"nothing comes", func(int) second { return second{} }, ""},
		{"all is taken at once", func(s int) second { return second{uint64(s), false} }, ""},
		{"there is always more", func(s int) second { return second{uint64(s), true} }, ""},
		{"it is slow", func(s int) second { return second{uint64(s / 9), true} }, ""},
		{"nothing is taken", func(s int) second { return second{100, s > 5} },
			"taken nothing for 24 s of what waits at its socket geneve; restart"},
		{"what waited is taken at last", func(s int) second { return second{100, s < 30} }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p progress
			for s := range 31 {
				at := tt.at(s)
				p.look(time.Duration(s)*time.Second, map[string]udp.Stats{"geneve": {ReceivedMessages: at.received,
					Waits: at.waits}, "wireguard": {}})
			}
			if got := p.fault(30 * time.Second); !strings.Contains(got, tt.stuck) || (got == "") != (tt.stuck == "") {
				t.Errorf("%q, want %q", got, tt.stuck)
			}
			if got := p.fault(45 * time.Second); !strings.Contains(got,
				"nobody has looked after the packet path for 15 s") {
				t.Errorf("nobody looks any more: %q", got)
			}
		})
	}
}
