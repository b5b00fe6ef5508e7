package integration

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"culvert/gateway/node"
)

// holeMTU is the size of the largest IP packet that passes through a hole.
const holeMTU = 1296

// pathTime is how soon a gateway knows that a hole has opened.
const pathTime = 15 * time.Second

// A hole drops large packets in one direction, silently.
type hole struct {
	way   string
	cause string
	says  string
	ends  func(*faultLab) (from, to *peerHost)
	into  int // end of a tcpFlow whose incoming data pass through it
}

var holes = []hole{
	{"to a node", "node-path-mtu", "on the way to rome-1 (172.18.0.2), mtu is 1340",
		func(l *faultLab) (from, to *peerHost) { return l.gateway, l.node }, 0},
	{"from a node", "node-path-mtu", "on the way from rome-1 (172.18.0.2), mtu is 1340",
		func(l *faultLab) (from, to *peerHost) { return l.node, l.gateway }, 1},
	{"to the peer", "peer-path-mtu", "on the way to the peer (192.0.2.7), mtu is 1340",
		func(l *faultLab) (from, to *peerHost) { return l.gateway, l.milanGateway }, 1},
	{"from the peer", "peer-path-mtu", "on the way from the peer (192.0.2.7), mtu is 1340",
		func(l *faultLab) (from, to *peerHost) { return l.milanGateway, l.gateway }, 0},
}

// holeFaults returns faults that open a hole during a TCP connection.
func holeFaults() (all []fault) {
	for _, h := range holes {
		all = append(all, fault{name: "large packets vanish on the way " + h.way, make: answering, inLog: "rome",
			cause: h.cause, says: h.says, later: func(l *faultLab) {
				c := l.newFlow(flowPace, 0, 1)
				defer c.close()
				c.moves(1<<20, startTimeout)
				l.cutTrains(&h)
				l.swallow(&h)
				began := time.Now()
				l.until("rome", "cause="+h.cause)
				known := time.Since(began)
				if l.t.Logf("known after %.1f s", known.Seconds()); known > pathTime {
					l.t.Errorf("that took %v, want at most %v", known, pathTime)
				}
				c.moves(1<<20, pathTime+3*known) // TCP retransmits after pauses that double, and may need two of them
				d := l.newFlow(flowPace, 0, 1)
				defer d.close()
				d.moves(1<<20, pathTime)
			}})
	}
	return all
}

// answering makes the node answer its gateway's pings; otherwise it has no route to the gateway's
// address.
func answering(l *faultLab) { l.script += "route add 10.80.0.4 dev tunnel\n" }

// cutTrains stops the link of a hole from carrying super-frames, which pass whatever their size.
func (l *faultLab) cutTrains(h *hole) {
	l.t.Helper()
	from, to := h.ends(l)
	for end, other := range map[*peerHost]*peerHost{from: to, to: from} {
		err := end.do(func() error {
			return node.SetFeatures(other.name, false, "tx-tcp-segmentation", "tx-generic-segmentation",
				"tx-udp_tnl-segmentation",
				"tx-udp_tnl-csum-segmentation", node.FeatureUDPSegmentation)
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// swallow drops packets larger than holeMTU where they arrive. A smaller MTU of a link would drop
// too much: the gateway obeys its own device's MTU, whatever routes say, so its packets would be
// dropped too.
func (l *faultLab) swallow(h *hole) {
	l.t.Helper()
	from, to := h.ends(l)
	to.feed(fmt.Sprintf(`table ip hole {
	chain arrived {
		type filter hook prerouting priority raw
		iifname %q ip length > %d drop
	}
}
`, from.name, holeMTU), "nft", "-f", "-")
}

// flowPace lies between two chunks of 64 KiB: 50 Mbit/s.
const flowPace = 10 * time.Millisecond

// A tcpFlow is a TCP connection between the pods; ends[0] is in rome.
type tcpFlow struct {
	l         *faultLab
	ends      [2]net.Conn
	delivered [2]atomic.Int64 // bytes
}

// newFlow opens a connection whose named ends write, with pace between two chunks, or as fast as
// possible if pace is 0.
func (l *faultLab) newFlow(pace time.Duration, writers ...int) *tcpFlow {
	l.t.Helper()
	listener, err := l.milan1.listen("tcp", "10.0.1.5:0")
	if err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	c := &tcpFlow{l: l}
	c.ends[0], err = l.pod.dial("tcp", fmt.Sprintf("10.61.1.5:%d", listener.Addr().(*net.TCPAddr).Port))
	if err == nil {
		c.ends[1], err = listener.Accept()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	for i, conn := range c.ends {
		go func() {
			if !slices.Contains(writers, i) {
				return
			}
			for chunk := make([]byte, 64<<10); ; time.Sleep(pace) { // the pace of the flow
				if _, err := conn.Write(chunk); err != nil {
					return
				}
			}
		}()
		go func() {
			buffer := make([]byte, 256<<10)
			for {
				n, err := conn.Read(buffer)
				if c.delivered[i].Add(int64(n)); err != nil {
					return
				}
			}
		}()
	}
	return c
}

// moves waits until so many bytes more have arrived at both ends.
func (c *tcpFlow) moves(bytes int64, limit time.Duration) {
	c.l.t.Helper()
	began, before := time.Now(), [2]int64{c.delivered[0].Load(), c.delivered[1].Load()}
	eventually(c.l.t, "a TCP connection", func() error {
		for i := range before {
			if n := c.delivered[i].Load() - before[i]; n < bytes {
				return fmt.Errorf("%d bytes have come to end %d", n, i)
			}
		}
		return nil
	})
	took := time.Since(began)
	if c.l.t.Logf("%d bytes each way after %.1f s", bytes, took.Seconds()); took > limit {
		c.l.t.Errorf("that took %v, want at most %v", took, limit)
	}
}

func (c *tcpFlow) close() {
	for _, conn := range c.ends {
		conn.Close()
	}
}
