package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"culvert/integration/need"
)

var probeTshark = programs("tshark", "tshark", "dumpcap")

// A capture is tshark's capture of the Geneve frames on a host's link.
type capture struct {
	host    *peerHost
	file    string
	process *peerProcess
}

func startCapture(h *peerHost, link string) *capture {
	h.t.Helper()
	c := &capture{host: h, file: filepath.Join(h.t.TempDir(), "geneve.pcapng")}
	// Buffer in MiB, large enough for everything: tshark may be slow.
	c.process = h.start(nil, "tshark", "-q", "-B", "16", "-i", link, "-f", "udp port 6091", "-w", c.file)
	eventually(h.t, "capture on "+link, func() error {
		need.NoError(h.t, c.process.running())
		info, err := os.Stat(c.file)
		if err == nil && info.Size() == 0 {
			err = errNotYet
		}
		return err
	})
	return c
}

// dissected is tshark's view of one frame. A field of several layers has their values from the
// outermost to the innermost.
type dissected struct {
	line                             string
	ours, outer6                     bool // from the gateway, over IPv6
	layers, vni                      string
	ipStatus, udpStatus, otherStatus []string // of checksums
	malformed                        string
	groups, severities               []string // of expert information
}

// What tshark's fields mean.
const (
	checksumGood   = "1"
	checksumAbsent = "3"
	groupSequence  = 0x02000000 // about TCP's losses, not about a packet's format
	severityWarn   = 0x00600000
)

// dissect returns tshark's view of each frame captured so far.
func (c *capture) dissect() ([]dissected, error) {
	args := []string{"-r", c.file, "-d", "udp.port==6091,geneve", "-T", "fields",
		// Otherwise tshark takes random bytes for some application protocol, and finds errors in
		// it.
		"-d", "udp.port==" + exchangePort + ",data", "-d", "tcp.port==" + exchangePort + ",data"}
	for _, protocol := range []string{"ip", "udp", "tcp"} {
		args = append(args, "-o", protocol+".check_checksum:TRUE")
	}
	for _, field := range []string{
		"ip.src", "ipv6.src", "frame.protocols", "geneve.vni", "ip.checksum.status", "udp.checksum.status",
		"tcp.checksum.status", "icmp.checksum.status", "icmpv6.checksum.status", "_ws.malformed", "_ws.expert.group",
		"_ws.expert.severity",
		"_ws.expert.message", "frame.number",
	} {
		args = append(args, "-e", field)
	}
	list := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) }
	out, err := c.host.try("", "tshark", args...)
	if err != nil {
		return nil, err
	}
	var frames []dissected
	for line := range strings.Lines(out) {
		f := strings.Split(line, "\t")
		outer6 := strings.HasPrefix(f[2], outer6Layers)
		source, _, _ := strings.Cut(map[bool]string{false: f[0], true: f[1]}[outer6], ",")
		frames = append(frames, dissected{
			line: line, ours: source == c.host.family.of("172.18.0.9"), outer6: outer6, layers: f[2], vni: f[3],
			ipStatus: list(f[4]), udpStatus: list(f[5]), otherStatus: list(f[6] + "," + f[7] + "," + f[8]),
			malformed: f[9], groups: list(f[10]), severities: list(f[11]),
		})
	}
	return frames, nil
}

// The layers around what Geneve carries.
const (
	outer4Layers = "eth:ethertype:ip:udp:geneve:"
	outer6Layers = "eth:ethertype:ipv6:udp:geneve:"
)

// Directions of a frame.
const (
	toGateway   = "to the gateway: "
	fromGateway = "from the gateway: "
)

// kind returns a frame's direction and the layers inside Geneve.
func (f *dissected) kind() string {
	direction := toGateway
	if f.ours {
		direction = fromGateway
	}
	inner, ok := strings.CutPrefix(f.layers, outer4Layers)
	if f.outer6 {
		inner, ok = strings.CutPrefix(f.layers, outer6Layers)
	}
	if !ok {
		return direction + "not Geneve: " + f.layers
	}
	return direction + strings.TrimSuffix(inner, ":data")
}

// complaint returns what tshark reports as wrong with a frame, or "".
func (f *dissected) complaint() string {
	if want := fmt.Sprintf("%#x", romeVNI); f.vni != want {
		return "VNI, want " + want
	}
	if f.malformed != "" {
		return "malformed"
	}
	for i, text := range f.severities {
		severity, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return err.Error()
		}
		group, err := strconv.ParseUint(f.groups[i], 0, 32)
		if err != nil {
			return err.Error()
		}
		// The kernel of a pod sends a checksum of 0xffff where RFC 1624 wants 0, and is not judged
		// here.
		if severity >= severityWarn && group != groupSequence && f.ours {
			return "expert information"
		}
	}
	for i, status := range f.udpStatus {
		// RFC 8926, Section 3.3: over IPv4 the outer checksum may be 0. Open vSwitch sends 0,
		// culvert does not.
		if i == 0 && !f.ours && !f.outer6 && status == checksumAbsent {
			continue
		}
		if status != checksumGood {
			return "UDP checksum"
		}
	}
	for _, status := range append(f.ipStatus, f.otherStatus...) {
		if status != checksumGood {
			return "IP, TCP or ICMP checksum"
		}
	}
	return ""
}

func TestPeerComplaint(t *testing.T) {
	good := dissected{
		vni: fmt.Sprintf("%#x", romeVNI), ipStatus: []string{"1", "1"}, udpStatus: []string{"3"},
		otherStatus: []string{"1"},
		groups:      []string{"33554432"}, severities: []string{"6291456"}, // a retransmission
	}
	for _, test := range []struct {
		name   string
		change func(*dissected)
		want   string
	}{
		{"good", func(*dissected) {}, ""},
		{"ours with checksum", func(f *dissected) { f.ours, f.udpStatus = true, []string{"1", "1"} }, ""},
		{"ours without checksum", func(f *dissected) { f.ours = true }, "UDP checksum"},
		{"over IPv6 without checksum", func(f *dissected) { f.outer6 = true }, "UDP checksum"},
		{"inner without checksum", func(f *dissected) { f.udpStatus = []string{"1", "3"} }, "UDP checksum"},
		{"outer checksum bad", func(f *dissected) { f.udpStatus = []string{"0"} }, "UDP checksum"},
		{"IP checksum bad", func(f *dissected) { f.ipStatus = []string{"1", "0"} }, "IP, TCP or ICMP checksum"},
		{"TCP checksum unverified", func(f *dissected) { f.otherStatus = []string{"2"} }, "IP, TCP or ICMP checksum"},
		{"other VNI", func(f *dissected) { f.vni = "0x1" }, fmt.Sprintf("VNI, want %#x", romeVNI)},
		{"malformed", func(f *dissected) { f.malformed = "1" }, "malformed"},
		{"warning of a protocol", func(f *dissected) {
			f.ours, f.udpStatus, f.groups = true, []string{"1"},
				[]string{"150994944"}
		}, "expert information"},
		{"warning about a pod", func(f *dissected) { f.groups = []string{"150994944"} }, ""},
		{"chat of a protocol", func(f *dissected) {
			f.groups, f.severities = []string{"150994944"},
				[]string{"2097152"}
		}, ""},
	} {
		f := good
		test.change(&f)
		if got := f.complaint(); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestPeerTshark has tshark dissect what culvert sends to Open vSwitch, and the reverse.
func TestPeerTshark(t *testing.T) {
	body := func(t *testing.T, f peerFamily) {
		c, _ := newOVSClusters(t, f, "")
		pingThrough(c.romeNode, romeInternal) // until the gateway hears a node, it also asks it in VXLAN
		capture := startCapture(c.romeGateway, c.romeNode.name)
		pingThrough(c.romePod, milanPodAtRome)
		pingThrough(c.milanPod, romePodAtMilan)
		e := exchange{from: c.romePod, to: c.milanPod, listen: podAddress, dial: milanPodAtRome, source: romePodAtMilan,
			bytes: 1_234_567}
		e.run(t)
		e.datagrams(t, 1, 100, 1000, 1312, 4001)

		least := map[string]int{
			"eth:ethertype:arp":     1,
			"eth:ethertype:ip:icmp": 24,
			"eth:ethertype:ip":      12, // all fragments except the first
			"eth:ethertype:ip:udp":  4,
			"eth:ethertype:ip:tcp":  e.bytes / 1288,
		}
		if f.inside {
			least = map[string]int{
				"eth:ethertype:ipv6:icmpv6":              24, // and neighbour discovery
				"eth:ethertype:ipv6:ipv6.fraghdr":        12,
				"eth:ethertype:ipv6:ipv6.fraghdr:icmpv6": 3,
				"eth:ethertype:ipv6:ipv6.fraghdr:udp":    2,
				"eth:ethertype:ipv6:udp":                 3,
				"eth:ethertype:ipv6:tcp":                 e.bytes / 1268,
			}
		}
		var frames []dissected
		seen := map[string]int{}
		eventually(t, "frames in the capture", func() (err error) { // the capture lags behind the traffic
			if frames, err = capture.dissect(); err != nil {
				return err
			}
			clear(seen)
			for i := range frames {
				seen[frames[i].kind()]++
			}
			for kind, n := range least {
				for _, direction := range []string{toGateway, fromGateway} {
					if seen[direction+kind] < n {
						return fmt.Errorf("%d frames %s%s, want %d at least", seen[direction+kind], direction, kind, n)
					}
				}
			}
			return nil
		})
		t.Log("frames seen: ", seen)
		for i := range frames {
			if text := frames[i].complaint(); text != "" {
				t.Errorf("%s: %s", text, frames[i].line)
			}
		}
		for kind := range seen {
			_, known := least[strings.TrimPrefix(kind, fromGateway)]
			if strings.HasPrefix(kind, fromGateway) && !known {
				t.Errorf("a frame %s, which nobody asked for", kind)
			}
		}
	}
	for _, f := range []peerFamily{{}, {inside: true}, {outside: true}, onlyIPv6Peers} {
		t.Run(f.String(), func(t *testing.T) {
			beside(t, func(t *testing.T) { body(t, f) }, probeOVS, probeTshark)
		})
	}
}
