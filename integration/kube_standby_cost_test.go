package integration

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

const (
	costPorts   = 8    // of the server, so that the clients' ports suffice
	costRate    = 1000 // connections a second that each of two nodes begins
	costWorkers = 8    // of each node
	costRound   = 8 * time.Second
	costRounds  = 5 // of each kind
	// What copying may cost: CPU time without a standby, divided by CPU time with one.
	costConnections = 0.95
	costStream      = 0.98
)

// shortConnections has both nodes open TCP connections at a fixed rate. Each carries a byte in both
// directions and closes. It returns how many succeeded.
func shortConnections(t *testing.T, from []*peerHost, at string) (done int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), costRound)
	defer cancel()
	var n, failed atomic.Int64
	var tasks sync.WaitGroup
	for _, host := range from {
		for w := range costWorkers {
			tasks.Go(func() {
				err := host.do(func() error {
					tick := time.NewTicker(time.Second * costWorkers / costRate)
					defer tick.Stop()
					for b, i := make([]byte, 1), w; ; i++ {
						select {
						case <-ctx.Done():
							return nil
						case <-tick.C:
						}
						conn, err := net.Dial("tcp4", net.JoinHostPort(at, strconv.Itoa(5310+i%costPorts)))
						if err == nil {
							conn.Write(b)
							_, err = conn.Read(b)
							conn.Close()
						}
						if err != nil {
							failed.Add(1)
							continue
						}
						n.Add(1)
					}
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	tasks.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d connections failed", failed.Load())
	}
	return n.Load()
}

// bulk sends through one connection for costRound, at a rate that leaves the machine some idle
// time, and returns how many bytes it has sent.
func bulk(t *testing.T, from *peerHost, at string) (bytes int64) {
	t.Helper()
	conn, err := from.dial("tcp4", at)
	need.NoError(t, err)
	defer conn.Close()
	const rate = 50e6 // bytes a second
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	b := make([]byte, 1<<16)
	for began := time.Now(); time.Since(began) < costRound; <-tick.C {
		for due := int64(time.Since(began).Seconds() * rate); bytes < due; {
			n, err := conn.Write(b)
			if bytes += int64(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bytes
}

// TestKubeStandbyCost measures what the copying of its table costs the active gateway, in CPU time
// for a connection and for a byte of one stream. The standby is another process, whose own work
// does not count.
func TestKubeStandbyCost(t *testing.T) {
	need.Long(t, "160 s of load")
	isolated(t, func(t *testing.T) {
		rome, milan, all := newStandbyLab(t)
		active, standby := all[0], all[1]
		own := milan.pod(&kubeNodes[0], 5)
		at := milan.seen(own)
		for i := range costPorts {
			milan.pods[0].accept(t, "tcp4", net.JoinHostPort(own, strconv.Itoa(5310+i)), func(conn net.Conn) {
				b := make([]byte, 1)
				if _, err := conn.Read(b); err == nil {
					conn.Write(b)
					conn.Read(b) // its end
				}
			})
		}
		milan.pods[0].accept(t, "tcp4", own+":5330", func(conn net.Conn) {
			for b := make([]byte, 1<<18); ; {
				if _, err := conn.Read(b); err != nil {
					return
				}
			}
		})
		pid := active.culvert.cmd.Process.Pid
		var costs [2][2][]float64 // with and without a standby; of a connection in µs, of a byte in ns
		for range costRounds {
			for i := range 2 {
				if i == 0 {
					standby.awaitCopy(t)
				} else {
					standby.culvert.stop()
				}
				before := cpuTime(t, pid)
				n := shortConnections(t, rome.nodes, at)
				used := cpuTime(t, pid) - before
				if want := 2 * costRate * int64(costRound/time.Second) * 9 / 10; n < want {
					t.Errorf("%d connections, want %d: the machine is too slow or busy for this rate", n, want)
				}
				costs[i][0] = append(costs[i][0], float64(used.Microseconds())/float64(n))
				before = cpuTime(t, pid)
				bytes := bulk(t, rome.pods[0], at+":5330")
				costs[i][1] = append(costs[i][1], float64(cpuTime(t, pid)-before)/float64(bytes))
			}
			standby.start()
		}
		for kind, limit := range []float64{costConnections, costStream} {
			for i := range costs {
				slices.Sort(costs[i][kind])
			}
			with, without := costs[0][kind], costs[1][kind]
			name := []string{"a connection, µs", "a byte of one stream, ns"}[kind]
			ratio := without[costRounds/2] / with[costRounds/2]
			t.Logf("CPU time of the active gateway for %s: with a standby %.3g, without %.3g: ratio %.3f (bound %v)",
				name, with, without, ratio, limit)
			if ratio < limit {
				t.Errorf("%s: ratio %.3f, want at least %v", name, ratio, limit)
			}
		}
	}, kubernetes, liqoMode)
}
