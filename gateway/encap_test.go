package gateway

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"

	"culvert/gateway/config"
	"culvert/gateway/config/configtest"
	"culvert/gateway/seats"
	"culvert/gateway/wgkey"
	"culvert/geneve"
	"culvert/geneve/genevetest"
	"culvert/integration/need"
)

// TestEncapByItself: nodes with encap auto are answered in their own encapsulation, which appears
// once in the log and in the metrics.
func TestEncapByItself(t *testing.T) {
	var clock atomic.Int64
	log, said := test.NewNullLogger()
	c := configtest.Cluster("rome", "milan", config.Client, "10.61.0.0/16", "10.71.0.0/16")
	c.WireGuard.PeerPublicKey, c.WireGuard.Endpoint = wgkey.NewPrivate().Public(), "127.0.0.1:9"
	c.Geneve.Nodes[0].Encap = geneve.Geneve
	cl := open(t, c, 41, log, func() time.Duration { return time.Duration(clock.Load()) })
	defer cl.close()
	open := *c
	open.Geneve.Nodes = append([]config.Node(nil), c.Geneve.Nodes...)
	for i := range open.Geneve.Nodes {
		open.Geneve.Nodes[i].Encap = geneve.Auto
	}
	need.NoError(t, cl.Apply(&open))
	answers := func(i int) {
		t.Helper()
		address := c.Geneve.Nodes[i].Address.String()
		cl.nodes[i].Send(echo(address, "10.80.0.4", 64, 20))
		expect(t, cl.nodes[i], "10.80.0.4", address)
	}
	tells := func(want ...string) {
		t.Helper()
		said.Reset()
		cl.monitor.LogEncaps()
		var got []string
		for _, e := range said.AllEntries() {
			was, _ := e.Data["was"].(string)
			got = append(got, e.Level.String()+" "+e.Data["node"].(string)+" "+e.Data["encap"].(string)+" "+was)
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("said %q, want %q", got, want)
		}
	}
	shows := func(lines ...string) {
		t.Helper()
		page := string(cl.inspect.Metrics(new(seats.Listener), 0))
		for _, line := range lines {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
		if n := strings.Count(page, "\nculvert_node_encap{"); n != len(lines)-1 {
			t.Errorf("%d nodes' encapsulations are shown", n)
		}
	}

	answers(0) // the gateway may have asked it already, and then knows
	answers(1)
	tells("info rome-1 geneve ", "info rome-2 vxlan ")
	tells()
	shows(`culvert_node_encap{encap="geneve",node="rome-1"} 1`, `culvert_node_encap{encap="vxlan",node="rome-2"} 1`,
		`culvert_node_encap_changes_total{node="rome-1"} 0`)

	clock.Add(int64(time.Minute))
	mac, address := cl.nodes[0].MAC, netip.MustParseAddr("10.80.0.2").As4()
	announcement := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac[:]...)
	announcement = append(append(append(announcement, address[:]...), 0, 0, 0, 0, 0, 0), address[:]...)
	cl.nodes[0].SendRaw(genevetest.VXLAN(11, genevetest.Frame([6]byte{255, 255, 255, 255, 255, 255}, mac,
		genevetest.ARP, announcement)))
	answers(1) // which came after it
	tells("warning rome-1 vxlan geneve")
	shows(`culvert_node_encap{encap="vxlan",node="rome-1"} 1`, `culvert_node_encap{encap="vxlan",node="rome-2"} 1`,
		`culvert_node_encap_changes_total{node="rome-1"} 1`)
}
