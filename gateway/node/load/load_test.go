package load

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/health"
	"culvert/geneve/udp"
)

// TestNode: a node that runs out of CPU time reports what it loses, at which device or socket, with
// a remedy that fits, and reports the end of it.
func TestNode(t *testing.T) {
	for _, test := range []struct {
		name     string
		fileless bool
		device   uint64 // packets lost a second
		socket   uint64
		want     string // "": nothing
	}{
		{"pods send more", false, 10, 1,
			"while 90 packets from this node by culvert0 were lost (0.008 Gb/s came): write cpus: 2, reload, and compare"},
		{"gateways send more", true, 1, 10,
			"while 90 packets from gateways were lost (0.004 Gb/s came): set GOMAXPROCS: 2 in the environment of culvert's container, and compare"},
		{"nothing is lost", false, 0, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, second := &Watch{fileless: test.fileless}, uint64(0)
			w.read = func(name string) (intake, error) {
				if name == "gone" {
					return intake{}, errors.New("no such device")
				}
				return intake{bytes: second * 1e6, lost: second * test.device}, nil
			}
			w.Devices(func() []string { return []string{"gone", "culvert0"} })
			w.Socket("gateways", func() udp.Stats {
				return udp.Stats{ReceivedBytes: second * 5e5, Overflows: second * test.socket,
					OverflowsKnown: true, Waits: true}
			})
			var said []string
			cpu := health.CPU{Procs: 1, CPUs: 2}
			for ; second < 40; second++ {
				if second > 5 && second <= 20 {
					cpu.Used += 990 * time.Millisecond
				}
				for _, f := range w.look(time.Duration(second)*time.Second, &cpu, "rome-1") {
					said = append(said, f.Cause.Name+" "+string(f.Kind)+" "+f.Of+" "+f.Text)
				}
				const metric = `culvert_fault{cause="cpu-procs",of="rome-1"} 1`
				if now := len(said) == 1; now != (len(w.Findings()) == 1) ||
					now != strings.Contains(w.Metrics(), metric) {
					t.Errorf("second %d: said %q, findings %v, metrics\n%s", second, said, w.Findings(), w.Metrics())
				}
				if lost := fmt.Sprintf("\nculvert_device_overflows_total{device=\"culvert0\"} %d\n",
					second*test.device); !strings.Contains(w.Metrics(), lost) {
					t.Errorf("second %d: no%sin\n%s", second, lost, w.Metrics())
				}
				drops, want := w.Drops(), []control.Drop(nil)
				if lost := second * test.device; lost > 0 {
					want = []control.Drop{{Reason: "culvert0", Packets: lost}}
				}
				if !slices.Equal(drops, want) {
					t.Errorf("second %d: drops %v, want %v", second, drops, want)
				}
				if f := w.Findings(); len(f) > 0 && (f[0].Level != "warning" || !strings.HasSuffix(said[0],
					f[0].Text)) {
					t.Errorf("status says %v", f)
				}
			}
			if test.want == "" {
				if len(said) > 0 {
					t.Errorf("said %q", said)
				}
				return
			}
			if len(said) != 2 || !strings.HasPrefix(said[0], "cpu-procs node rome-1 ") || !strings.HasSuffix(said[0],
				test.want) || !strings.HasPrefix(said[1], "cpu-restored node rome-1 ") {
				t.Errorf("said %q, want ... %s", said, test.want)
			}
		})
	}
}
