package integration

import (
	"regexp"
	"strconv"
	"testing"
)

// TestPeerNetem puts a kernel with netem between the gateways: it delays, loses and reorders what
// they send each other.
func TestPeerNetem(t *testing.T) {
	beside(t, func(t *testing.T) {
		var g *guest
		c := newMilanAcross(t, peerFamily{}, func(rome, milan *peerHost) {
			wan := newPeerHost(t, "wan")
			wan.ip("link add bridge type bridge", "link set bridge up")
			for host, address := range map[*peerHost]string{rome: "192.0.2.1/32", milan: "192.0.2.7/32"} {
				join(wan, host, "", address, 1500)
				wan.ip("link set " + host.name + " master bridge")
				host.ip("route add 192.0.2.254 dev wan", "route add default via 192.0.2.254")
			}
			g = startGuest(wan, "192.0.2.254/24", "")
			wan.ip("link set guest master bridge")
			g.sh(
				"echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects",
				"echo 0 >/proc/sys/net/ipv4/conf/eth0/send_redirects",
				"echo 1 >/proc/sys/net/ipv4/ip_forward",
				"tc qdisc add dev eth0 root netem limit 10000 delay 3ms loss 1% reorder 5%",
			)
		})
		c.addRome()

		eventually(t, "ping", func() error {
			_, err := c.romePod.try("", "ping", "-c", "1", "-W", "1", milanPodAtRome)
			return err
		})
		t.Log(c.romePod.run("ping", "-q", "-c", "100", "-i", "0.02", milanPodAtRome))
		exchange{from: c.romePod, to: c.milanPod, listen: podAddress, dial: milanPodAtRome, source: romePodAtMilan,
			bytes: 10_000_003}.run(t)
		out := g.sh("tc -s qdisc show dev eth0")
		t.Log(out)
		lost := regexp.MustCompile(`dropped ([0-9]+),`).FindStringSubmatch(out)
		if lost == nil {
			t.Fatalf("no count of losses in\n%s", out)
		}
		if n, err := strconv.Atoi(lost[1]); err != nil || n == 0 {
			t.Errorf("%q packets were lost on the way, want some", lost[1])
		}
	}, probeGuest)
}
