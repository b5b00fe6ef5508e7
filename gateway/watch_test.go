package gateway

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/path"
	"culvert/gateway/seats"
	"culvert/gateway/wgkey"
	"culvert/geneve/genevetest"
)

// TestWatch: what a gateway counts becomes sentences in its log and faults in its metrics.
func TestWatch(t *testing.T) {
	log, said := logtest.NewNullLogger()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey = wgkey.NewPrivate().Public()
	c.WireGuard.Endpoint = "127.0.0.1:9"
	cl := open(t, c, 50, log, nil)
	defer cl.close()
	defer cl.monitor.Close()
	waitFor(t, "a handshake", func() bool { return cl.wg.Stats().Talk.SentInitiations > 0 })
	began := path.Uptime()
	for second := range 5 {
		cl.nodes[1].SendRaw(genevetest.Geneve(11, 0x6558, nil))   // VNI of rome-1
		cl.nodes[0].Send(udpPacket("10.0.2.9", "10.61.1.7", nil)) // a pod of rome-2
		cl.nodes[0].Send(udpPacket("10.0.1.9", "10.99.1.7", nil)) // to nowhere
		cl.nodes[0].Receive()                                     // the ICMP error for the last one
		cl.monitor.Look(began + time.Duration(second)*time.Second)
	}
	var causes []string
	for _, e := range said.AllEntries() {
		if cause, ok := e.Data["cause"].(string); ok {
			causes = append(causes, cause)
			if e.Level == logrus.WarnLevel && !strings.Contains(e.Message, ": ") {
				t.Errorf("no remedy in %q", e.Message)
			}
		}
	}
	slices.Sort(causes)
	want := []string{"bad-source-node", "endpoint-refused", "no-route-remote", "node-heard", "node-vni"}
	if !slices.Equal(causes, want) {
		t.Errorf("causes %q, want %q", causes, want)
	}
	page := string(cl.inspect.Metrics(seats.New(nil), 0))
	for _, line := range []string{
		`culvert_fault{cause="bad-source-node",of="rome-1"} 1`, `culvert_fault{cause="endpoint-refused",of="milan"} 1`,
		`culvert_fault{cause="node-vni",of="rome-2"} 1`, `culvert_build_info{version="`,
		`culvert_wireguard_handshake_messages_total{kind="initiation",peer="milan",way="sent"} 1`,
	} {
		if !strings.Contains(page, "\n"+line) {
			t.Errorf("no metric %s", line)
		}
	}
}
