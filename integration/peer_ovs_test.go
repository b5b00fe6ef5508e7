package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// ovsSchema is where Debian's openvswitch-common puts it.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

var probeOVS = programs("ovs", "ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-appctl", "ovs-ofctl",
	"nft", "ethtool", "ping")

// An openVSwitch is an Open vSwitch that the test starts, with its user-space datapath.
type openVSwitch struct {
	host *peerHost
	dir  string // its sockets, database and logs
}

// startOVS starts Open vSwitch inside a host.
func startOVS(h *peerHost) *openVSwitch {
	h.t.Helper()
	o := &openVSwitch{host: h, dir: h.t.TempDir()}
	in := func(name string) string { return filepath.Join(o.dir, name) }
	h.run("ovsdb-tool", "create", in("conf.db"), ovsSchema)
	h.start(nil, "env", "OVS_RUNDIR="+o.dir, "ovsdb-server", in("conf.db"), "-vconsole:warn",
		"--remote=punix:"+in("db.sock"),
		"--unixctl="+in("ovsdb.ctl"), "--pidfile="+in("ovsdb.pid"))
	eventually(h.t, "ovsdb-server", func() error {
		_, err := h.try("", "ovs-vsctl", "--db=unix:"+in("db.sock"), "--no-wait", "init")
		return err
	})
	h.start(nil, "env", "OVS_RUNDIR="+o.dir, "ovs-vswitchd", "unix:"+in("db.sock"), "--disable-system",
		"-vconsole:warn",
		"--unixctl="+in("vswitchd.ctl"), "--pidfile="+in("vswitchd.pid"))
	return o
}

// vsctl changes the configuration and waits until it is in effect.
func (o *openVSwitch) vsctl(command string) string {
	o.host.t.Helper()
	args := strings.Fields("--db=unix:" + filepath.Join(o.dir, "db.sock") + " --timeout=20 " + command)
	return o.host.run("ovs-vsctl", args...)
}

// appctl asks the running ovs-vswitchd.
func (o *openVSwitch) appctl(command string) string {
	o.host.t.Helper()
	return o.host.run("ovs-appctl", strings.Fields("--target="+filepath.Join(o.dir, "vswitchd.ctl")+" "+command)...)
}

// ofctl changes or shows a bridge's flows.
func (o *openVSwitch) ofctl(command, bridge string, args ...string) string {
	o.host.t.Helper()
	return o.host.run("ovs-ofctl", append([]string{"-O", "OpenFlow15", command, filepath.Join(o.dir, bridge+".mgmt")},
		args...)...)
}

// addFlow adds a flow to br-int and waits until no packet uses an older one.
func (o *openVSwitch) addFlow(flow string) {
	o.host.t.Helper()
	o.ofctl("add-flow", "br-int", flow)
	o.appctl("revalidator/purge")
	o.appctl("revalidator/wait")
}

// newOVSClusters makes both clusters; rome's node is Open vSwitch:
//
//	pod ─ veth ─ kernel ─ br-int (10.80.0.2) ─ Geneve port ─ br-phy (172.18.0.2) ─ veth ─ gateway
func newOVSClusters(t *testing.T, f peerFamily, tunnelOptions string) (*clusters, *openVSwitch) {
	t.Helper()
	c := newMilanOf(t, f)
	c.newRomeNode()
	join(c.romeGateway, c.romeNode, "172.18.0.9/24", "", 1500)
	connectPod(c.romeNode, c.romePod)
	// Open vSwitch reads from the veth by AF_PACKET: it would drop a frame whose checksum was left
	// to a network card.
	c.romeGateway.run("ethtool", "-K", c.romeNode.name, "tx", "off")
	o := startOVS(c.romeNode)
	o.vsctl("add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy rome-gw")
	o.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev -- add-port br-int tunnel" +
		fmt.Sprintf(
			" -- set interface tunnel type=geneve options:remote_ip=172.18.0.9 options:key=%d options:dst_port=6091 ",
			romeVNI) + tunnelOptions)
	// AF_PACKET copies, so the kernel would answer the same frames.
	c.romeNode.feed("add table netdev ovs\n"+
		"add chain netdev ovs ingress { type filter hook ingress device rome-gw priority 0; policy drop; }\n",
		"nft", "-f", "-")
	c.romeNode.ip(
		"address add 172.18.0.2/24 dev br-phy",
		"link set br-phy up",
		"link set br-int mtu 1340 up",
		"address add 10.80.0.2/24 dev br-int",
		"route add 10.61.0.0/16 via "+romeInternal,
		"route add 10.71.0.0/16 via "+romeInternal,
	)
	c.romeCulvert = startGateway(c.romeGateway, romeConfig, c.romeKey, c.milanKey.public)
	return c, o
}

func TestPeerOpenVSwitch(t *testing.T) {
	besideFamilies(t, func(t *testing.T, f peerFamily) {
		c, o := newOVSClusters(t, f, "options:csum=true")
		pingThrough(c.romePod, milanPodAtRome)
		pingThrough(c.milanPod, romePodAtMilan)
		pingThrough(c.romeNode, romeInternal)
		exchange{from: c.romePod, to: c.milanPod, listen: podAddress, dial: milanPodAtRome, source: romePodAtMilan,
			bytes: 12_345_678}.run(t)
		exchange{from: c.milanPod, to: c.romePod, listen: podAddress, dial: romePodAtMilan, source: milanPodAtRome,
			bytes: 10_000_001}.run(t)
		for _, want := range []string{fmt.Sprintf("tunnel(tun_id=%#x", romeVNI), "tnl_push("} {
			if flows := o.appctl("dpctl/dump-flows"); !strings.Contains(flows, want) {
				t.Errorf("no flow of the datapath has %s:\n%s", want, flows)
			}
		}
		if !f.inside { // options are in the Geneve header, which has no family
			t.Run("options", func(t *testing.T) { testOptions(t, c, o) })
		}
	}, probeOVS)
}

// testOptions sends Geneve options through Open vSwitch: a critical option makes the gateway drop
// the packet, another one is ignored.
func testOptions(t *testing.T, c *clusters, o *openVSwitch) {
	o.ofctl("add-tlv-map", "br-int",
		"{class=0xfff0,type=0x01,len=8}->tun_metadata0,{class=0xfff0,type=0x81,len=4}->tun_metadata1")
	const dropped = `culvert_dropped_packets_total{direction="outbound",reason="critical-option"}`
	ping := []string{"-c", "3", "-i", "0.05", "-W", "1", milanPodAtRome}

	const pings = "icmp,in_port=LOCAL,nw_dst=" + milanPodAtRome // answers to the gateway's probes have no option
	o.addFlow(pings + " actions=set_field:0x1122334455667788->tun_metadata0,NORMAL")
	c.romePod.run("ping", ping...)
	if n := c.romeGateway.metric(dropped); n != 0 {
		t.Errorf("%v frames with an option that may be ignored were dropped", n)
	}
	o.addFlow(pings + " actions=set_field:0x11223344->tun_metadata1,NORMAL")
	if out, err := c.romePod.try("", "ping", ping...); err == nil {
		t.Errorf("an option that must be understood was ignored:\n%s", out)
	}
	if n := c.romeGateway.metric(dropped); n != 3 {
		t.Errorf("%v frames with an option that must be understood were dropped, want 3", n)
	}
}
