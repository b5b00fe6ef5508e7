package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/webpage"
	"culvert/integration/need"
)

// A shownGateway is a gateway that only has a status. Each request finds it a second later, with
// more traffic.
type shownGateway struct {
	control.Source // nothing else is asked for
	looks          atomic.Int64
	change         func(*control.Status)
}

// Status implements control.Source.
func (g *shownGateway) Status() control.Status {
	n := uint64(g.looks.Add(1))
	silence, handshake, rest := 0.4, 12.0, uint64(0)
	s := control.Status{
		Cluster: "rome", Peer: "milan", Role: "client", Version: control.Version{Version: "v1.2.3"}, PID: 4711,
		Started:       time.Now().Add(-3 * time.Hour),
		UptimeSeconds: 3*3600 + float64(n), MTU: 1340, Findings: []control.Finding{{Level: "info", Cause: "node-heard",
			Of: "rome-1", Text: "first packet"}},
		Tunnel: control.Tunnel{State: "up", Endpoint: "192.0.2.7:51840", HandshakeSeconds: &handshake,
			ReceivedBytes: n * 1_250_000, SentBytes: n * 125_000_000},
		Table: control.Table{Connections: 1234, Max: 1 << 20, Created: 8 * n, BusiestPorts: 300,
			BusiestPortsMax: 60480},
		Outbound: control.Traffic{Received: n * 90_000, Forwarded: n * 90_000, Drops: []control.Drop{
			{Reason: "no-route", Packets: 3 * n, Rate: 3, Means: "No node and no remote CIDR has the destination.",
				Remedy: "make routes and remaps the same"}}},
		Inbound: control.Traffic{Forwarded: n * 9_000, Drops: []control.Drop{}},
		Refused: []control.Refusal{{Time: time.Now(), Direction: "outbound", Reason: "no-route", From: "rome-1",
			Protocol: "tcp", Source: "10.0.1.5:40000", Destination: "10.99.0.1:80", Packets: 3 * n},
			{Time: time.Now(), Direction: "inbound", Reason: "bad-mac1", Protocol: "udp", Source: "203.0.113.9",
				Packets: 1}},
		Sockets: map[string]control.Socket{"geneve": {ReceiveBuffer: 8 << 20, GRO: true, GSO: true, Overflows: &rest},
			"wireguard": {ReceiveBuffer: 8 << 20}},
		Memory: control.Memory{Resident: 26 << 20},
	}
	for i, name := range []string{"rome-1", "rome-2", `<img src=x onerror="throw 1">`} {
		node := control.Node{Name: name, State: "up", Underlay: netip.AddrFrom4([4]byte{172, 18, 0, byte(2 + i)}),
			Encap: "vxlan", VNI: uint32(i + 1),
			PodCIDRs:       []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(1 + i), 0}), 24)},
			SilenceSeconds: &silence,
			ReceivedBytes:  n * 125_000_000 >> (7 * i), SentBytes: n * 1_250_000 >> (7 * i)}
		s.Nodes = append(s.Nodes, node)
	}
	if g.change != nil {
		g.change(&s)
	}
	return s
}

// serve makes g answer at a socket until stop is called.
func (g *shownGateway) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	need.NoError(t, err)
	s := control.NewServer(g, log.New(io.Discard, "", 0))
	go s.Serve(l)
	t.Cleanup(s.Close)
	return s.Close
}

// milanOf turns rome's status into one of milan's, with faults.
func milanOf(s *control.Status) {
	s.Cluster, s.Peer, s.Role, s.PID = "milan", "rome", "server", 4712
	s.Tunnel.State, s.Tunnel.HandshakeSeconds, s.Tunnel.Endpoint = "down", nil, ""
	s.Nodes[1].State, s.Nodes[1].SilenceSeconds = "unresolved", nil
	s.Findings = append(s.Findings, control.Finding{Level: "warning", Cause: "no-handshake", Kind: "peer", Of: "rome",
		Text: "no handshake from the peer for 12 s (0 received on UDP 51840): is the peer running, and is UDP 51840 open here?"})
	for len(s.Nodes) < 30 {
		n := s.Nodes[0]
		n.Name, n.ReceivedBytes, n.SentBytes = "milan-"+string(rune('a'+len(s.Nodes))), 0, 0
		s.Nodes = append(s.Nodes, n)
	}
}

// faster makes a page ask its gateway without waiting a second.
const faster = `{ const later = setTimeout; window.setTimeout = (f, ms) => later(f, ms / 50); }`

// lowContrast lists texts with less contrast than WCAG 2.2, Success Criterion 1.4.3 (AA), requires.
const lowContrast = `[...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && !e.closest(".away") &&
	[...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).flatMap(e => {
		const channels = c => c.match(/[\d.]+/g).map(Number);
		const light = c => channels(c).slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
			.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
		let ground = e;
		while (channels(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
		const [a, b] = [light(getComputedStyle(e).color), light(getComputedStyle(ground).backgroundColor)].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		return ratio < 4.5 ? [e.textContent.slice(0, 30) + " " + ratio.toFixed(2)] : [];
	})`

// A pageTest is culvert page in a browser, beside the gateways of rome and milan.
type pageTest struct {
	*browser
	rome, milan *shownGateway
	stop        func() // ends rome's socket
	socket      string // rome's
	page        *webpage.Page
	server      *httptest.Server
}

func newPageTest(t *testing.T) *pageTest {
	dir := t.TempDir()
	p := &pageTest{rome: &shownGateway{}, milan: &shownGateway{change: milanOf},
		socket: filepath.Join(dir, "rome-milan.sock")}
	p.stop = p.rome.serve(t, p.socket)
	p.milan.serve(t, filepath.Join(dir, "milan-rome.sock"))
	p.page = webpage.New([]*control.Client{control.NewClient(p.socket),
		control.NewClient(filepath.Join(dir, "milan-rome.sock"))})
	p.server = httptest.NewServer(p.page)
	t.Cleanup(p.server.Close)
	p.browser = newBrowser(t)
	p.call("Page.addScriptToEvaluateOnNewDocument", map[string]string{"source": faster}, nil)
	p.size(1240, 900)
	p.call("Page.navigate", map[string]string{"url": p.server.URL + p.page.Path()}, nil)
	p.wait(`document.querySelector("#leg .out").textContent === "1 Gbit/s →"`)
	return p
}

// says requires texts on the page.
func (p *pageTest) says(all ...string) {
	p.t.Helper()
	var text string
	p.eval(`document.body.innerText`, &text)
	for _, want := range all {
		if !strings.Contains(text, want) {
			p.t.Errorf("no %q on the page:\n%s", want, text)
		}
	}
}

func (p *pageTest) check(expression string, want any) {
	p.t.Helper()
	var got any
	if p.eval(expression, &got); got != want {
		p.t.Errorf("%s is %v, want %v", expression, got, want)
	}
}

// looks requires enough contrast, and takes a picture.
func (p *pageTest) looks(name string) {
	p.t.Helper()
	var low []string
	if p.eval(lowContrast, &low); len(low) > 0 {
		p.t.Errorf("%s: low contrast of %q", name, low)
	}
	p.picture(name)
}

// fits is true if nothing is wider than the window.
const fits = `document.documentElement.scrollWidth <= document.documentElement.clientWidth`

// TestPage opens culvert page in a browser and checks what it shows of two gateways: in light and
// dark colours, in a wide and a narrow window, by mouse and keyboard, and when a gateway
// disappears.
func TestPage(t *testing.T) {
	needPrograms(t, []probe{programs("chromium", "chromium")})
	t.Parallel()
	p := newPageTest(t)
	p.says("rome", "milan", "Nothing is wrong", "← 10 Mbit/s", "90,000 packets/s", "rome-1", "→ 7.81 Mbit/s",
		"1,234 of 1,048,576", "300 of 60,480", "12 s ago", "192.0.2.7:51840",
		"no-route", "No node and no remote CIDR has the destination.", "Make routes and remaps the same",
		"tcp 10.0.1.5:40000 → 10.99.0.1:80", "a stranger",
		"10.0.1.0/24", "vxlan, VNI 1", "GRO and GSO", "26 MiB", `<img src=x onerror="throw 1">`)
	p.check(fits, true)
	// three nodes and the peer, in both directions
	p.check(`document.querySelectorAll("#path .flow:not(.l0)").length`, 8.0)
	p.check(`getComputedStyle(document.querySelector(".flow.l5")).animationName`, "flow")
	p.looks("light")
	p.asPreferred()
	p.byKeyboard()
	p.ofMilan()
	p.gatewayLost()
	if len(p.faults) > 0 {
		t.Errorf("the browser complains: %s", p.faults)
	}
	if i := slices.IndexFunc(p.asked, func(url string) bool {
		return !strings.HasPrefix(url, p.server.URL+p.page.Path())
	}); i >= 0 || len(p.asked) < 4 {
		t.Errorf("the page asks for %s", p.asked)
	}
}

// asPreferred shows the page without motion, in dark colours and in narrow windows.
func (p *pageTest) asPreferred() {
	p.prefers("prefers-reduced-motion", "reduce")
	p.check(`getComputedStyle(document.querySelector(".flow.l5")).animationName`, "none")
	p.prefers("prefers-color-scheme", "dark")
	p.check(`getComputedStyle(document.body).backgroundColor`, "rgb(16, 19, 22)")
	p.looks("dark")
	for _, width := range []int{700, 360} {
		p.size(width, 800)
		p.check(fits, true)
	}
	p.looks("dark-narrow")
	p.prefers("prefers-color-scheme", "light")
	p.picture("narrow")
	p.size(1240, 900)
}

// byKeyboard presses Pause, then the other gateway.
func (p *pageTest) byKeyboard() {
	p.key("Tab", 9)
	p.check(`document.activeElement.id`, "pause")
	p.key("Enter", 13)
	p.check(`document.querySelector("#pause").getAttribute("aria-pressed")`, "true")
	p.check(`getComputedStyle(document.querySelector(".flow")).animationPlayState`, "paused")
	p.key("Enter", 13)
	p.key("Tab", 9)
	p.key("Tab", 9)
	p.key("Enter", 13)
	p.wait(
		`document.querySelector("#cluster").textContent === "milan" && document.title.startsWith("(1) milan → rome")`)
}

// ofMilan checks the page of a gateway with faults and many nodes.
func (p *pageTest) ofMilan() {
	p.says("1 thing is wrong", "is UDP 51840 open here?", "never heard", "and 24 more, below", "Show all 30",
		"none yet", "From rome")
	p.check(`document.querySelectorAll("#all tbody tr").length`, 20.0)
	p.eval(`document.querySelector("#more").click()`, nil)
	p.check(`document.querySelectorAll("#all tbody tr").length`, 30.0)
	p.check(`document.querySelector("#all tbody tr td").textContent.startsWith("rome-2")`, true) // faults come first
	p.looks("warnings")
}

// gatewayLost: a gateway disappears and comes back, then culvert page ends.
func (p *pageTest) gatewayLost() {
	p.eval(`location.hash = "rome-milan"`, nil)
	p.wait(`document.querySelector("#cluster").textContent === "rome"`)
	p.stop()
	p.wait(`!document.querySelector("#lost").hidden && document.title === "lost: rome → milan"`)
	p.check(`document.querySelector("#lost").innerText.startsWith("The gateway does not answer.")`, true)
	p.check(`document.querySelector("#lost").innerText.includes("What you see is as of ")`, true)
	p.check(`getComputedStyle(document.querySelector(".flow")).animationPlayState`, "paused")
	p.looks("lost")
	p.rome.serve(p.t, p.socket)
	p.wait(`document.querySelector("#lost").hidden && document.title === "rome → milan"`)
	p.server.CloseClientConnections()
	p.server.Close()
	p.wait(`document.querySelector("#lost").innerText.startsWith("culvert page has ended.")`)
}

// readPage runs culvert page as this user until it has reported the states of the gateways of some
// clusters.
func (u *labUser) readPage(clusters ...string) {
	u.t.Helper()
	cmd := u.program(u.binary, "page")
	out, err := cmd.StdoutPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		u.t.Errorf("culvert page: %v, %q", err, address)
	}
	for i, cluster := range clusters {
		var s control.Status
		response, err := http.Get(fmt.Sprintf("%sstatus/%d", strings.TrimSpace(address), i))
		if err == nil {
			err = json.NewDecoder(response.Body).Decode(&s)
			response.Body.Close()
		}
		if err != nil || s.Cluster != cluster {
			u.t.Errorf("culvert page: status of %q, %v; want that of %s", s.Cluster, err, cluster)
		}
	}
	cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		u.t.Errorf("culvert page: %v", err)
	}
}
