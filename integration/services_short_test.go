package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"culvert/integration/need"
)

// TestServicesShortConnections opens short connections to one endpoint, one after another, from the
// node, a pod and outside, until each source has used its share of the ports several times. None
// may fail, and culvert may drop no SYN for lack of a port. In make long there are 100,000 from
// each source, with a node's default ports, beside the same with kube-proxy; then no SYN may be
// repeated either.
func TestServicesShortConnections(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		l.more = "  metrics: " + metricsAddress + "\n"
		total, rate, services := 2000, 400, 1
		if os.Getenv(longEnv) != "" {
			total, rate, services = 100_000, 1000, 16
		} else {
			l.more += "  clientPorts: 61000-61511\n"
		}
		var all []string
		for i := range services {
			all = append(all, served(fmt.Sprintf("web%d", i), "tcp", 10+i, "", "pb"))
		}
		l.start(all...)
		for _, from := range []*peerHost{l.n1, l.a, l.out} {
			failed, repeated := l.shortConnections(from, total, rate, services)
			if failed > 0 || repeated > 0 && os.Getenv(longEnv) != "" {
				t.Errorf("%s: %d connections failed, %d SYNs were repeated", from.name, failed, repeated)
			}
		}
		for _, reason := range []string{"port-share", "port-exhausted"} {
			page, err := l.n1.get("/metrics")
			need.NoError(t, err)
			for line := range strings.Lines(page) {
				if strings.HasPrefix(line, "culvert_dropped_packets_total") && strings.Contains(line, `"`+reason+`"`) &&
					!strings.HasSuffix(line, " 0\n") {
					t.Error(line)
				}
			}
		}
	}, programs("ip", "ip"))
}

// TestServicesShortConnectionsOfKubeProxy is the reference for make long: the same with kube-proxy
// in place of culvert.
func TestServicesShortConnectionsOfKubeProxy(t *testing.T) {
	need.Long(t, "the reference of 300,000 connections by kube-proxy")
	isolated(t, func(t *testing.T) {
		l, f := newServiceLab(t), proxyFamilies["IPv4"]
		var all []*proxyService
		for i := range 16 {
			all = append(all, &proxyService{name: fmt.Sprintf("web%d", i), cluster: fmt.Sprintf("10.96.0.%d", 10+i),
				port: 80, nodePort: uint16(30010 + i),
				targetPort: 8080, endpoints: []proxyEndpoint{{serviceAddresses["pb"][0], "n2"}}})
		}
		cmd := need.Command(t, filepath.Join(os.Getenv(kubeAssetsEnv), "kubeproxy"), "-node", "n1", "-address", f.node,
			"-pods", f.pods, "-services", f.services)
		in, err := cmd.StdinPipe()
		need.NoError(t, err)
		need.NoError(t, l.n1.do(cmd.Start))
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		need.NoError(t, json.NewEncoder(in).Encode(f.objects(all)))
		eventually(t, "kube-proxy", func() error {
			for _, s := range all {
				if conn, err := l.n1.dialWithin(silence, "tcp", s.cluster+":80"); err != nil {
					return errNotYet
				} else {
					conn.Close()
				}
			}
			return nil
		})
		for _, from := range []*peerHost{l.n1, l.a, l.out} {
			l.shortConnections(from, 100_000, 1000, 16)
		}
	}, kubeProxy, programs("nft", "nft"))
}

// shortConnections opens connections to the Services from number 10 on, at most rate a second: time
// that is lost is not made up for by a burst, which needs more ports. It reads from each which
// endpoint answers and closes it. It returns how many failed, and how many SYNs the
// client has repeated.
func (l *serviceLab) shortConnections(from *peerHost, total, rate, services int) (failed, repeated int) {
	l.Helper()
	before := l.repeatedSYNs(from)
	var next, bad, slow atomic.Int64
	begin := time.Now()
	var pace sync.Mutex
	due := begin
	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			err := from.do(func() error {
				dialer, b := net.Dialer{Timeout: askPatience}, make([]byte, 100)
				for i := next.Add(1) - 1; i < int64(total); i = next.Add(1) - 1 {
					pace.Lock()
					if due = due.Add(time.Second / time.Duration(rate)); time.Until(due) < 0 {
						due = time.Now()
					}
					turn := due
					pace.Unlock()
					time.Sleep(time.Until(turn)) // not synchronisation: this is the rate
					to := fmt.Sprintf("10.96.0.%d:80", 10+i%int64(services))
					if from == l.out {
						to = fmt.Sprintf("172.18.0.2:%d", 30010+i%int64(services))
					}
					at := time.Now()
					conn, err := dialer.Dial("tcp", to)
					if err != nil {
						bad.Add(1)
						continue
					}
					if time.Since(at) > time.Second {
						slow.Add(1)
					}
					conn.SetDeadline(time.Now().Add(askPatience))
					if _, err := conn.Read(b); err != nil {
						bad.Add(1)
					}
					conn.Close()
				}
				return nil
			})
			if err != nil {
				l.Error(err)
			}
		})
	}
	wait.Wait()
	failed, repeated = int(bad.Load()), l.repeatedSYNs(from)-before
	l.Logf("%s: %d connections in %.1f s: %d failed, %d took over a second, %d SYNs repeated", from.name, total,
		time.Since(begin).Seconds(),
		failed, slow.Load(), repeated)
	return failed, repeated
}

// repeatedSYNs returns how many SYNs a host has repeated.
func (l *serviceLab) repeatedSYNs(h *peerHost) (n int) {
	l.Helper()
	err := h.do(func() error {
		file, err := os.Open("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		defer file.Close()
		var names []string
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			for i, name := range names {
				if name == "TCPSynRetrans" {
					_, err := fmt.Sscan(fields[i], &n)
					return err
				}
			}
			if names = nil; fields[0] == "TcpExt:" {
				names = fields
			}
		}
		return io.ErrUnexpectedEOF
	})
	need.NoError(l, err)
	return n
}
