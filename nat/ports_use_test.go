package nat_test

import (
	"testing"
	"time"
)

// While connections come and go, the ports in use are counted, and the remote address and port with
// most of them is known.
func TestPortUse(t *testing.T) {
	e := engine(t)
	use := func(ports, busiest int) {
		t.Helper()
		if st := e.Stats(); st.Ports != ports || st.BusiestPorts != busiest || busiest > 0 &&
			st.BusiestPortsMax != (65536-1024)*15/16 {
			t.Errorf("%d ports, %d of %d towards the busiest; want %d and %d", st.Ports, st.BusiestPorts,
				st.BusiestPortsMax, ports, busiest)
		}
	}
	use(0, 0)
	forwarded(t, e, node1, udp("10.200.1.5", "10.71.3.9", 4000, 53).Bytes(), start) // a pod keeps its own ports
	use(0, 0)
	flood(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1, 9000), 300, start)
	flood(t, e, node1, udp("203.0.113.9", "10.71.3.8", 1, 9000), 500, start.Add(time.Minute))
	use(800, 500)
	forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 1024, 9000).Bytes(), start.Add(time.Minute)) // one lives on
	for !e.Sweep(start.Add(2*time.Minute + 30*time.Second)) {
	}
	use(501, 500)
	for !e.Sweep(start.Add(4 * time.Minute)) {
	}
	use(0, 0)
	forwarded(t, e, node1, udp("203.0.113.9", "10.71.3.9", 7, 9000).Bytes(), start.Add(5*time.Minute))
	if st := e.Stats(); st.Ports != 1 || st.BusiestPorts != 1 || st.BusiestPortsMax != 512*15/16 {
		t.Errorf("%+v", st)
	}
}
