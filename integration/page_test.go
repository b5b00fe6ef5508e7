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

// TestPage opens culvert page in a browser and checks what it shows of two gateways: in light and
// dark colours, in a wide and a narrow window, by mouse and keyboard, and when a gateway
// disappears.
func TestPage(t *testing.T) {
	needPrograms(t, []probe{programs("chromium", "chromium")})
	t.Parallel()
	dir := t.TempDir()
	rome, milan := &shownGateway{}, &shownGateway{change: milanOf}
	stop := rome.serve(t, filepath.Join(dir, "rome-milan.sock"))
	milan.serve(t, filepath.Join(dir, "milan-rome.sock"))
	page := webpage.New([]*control.Client{control.NewClient(filepath.Join(dir, "rome-milan.sock")),
		control.NewClient(filepath.Join(dir, "milan-rome.sock"))})
	server := httptest.NewServer(page)
	defer server.Close()

	b := newBrowser(t)
	b.call("Page.addScriptToEvaluateOnNewDocument", map[string]string{"source": faster}, nil)
	b.size(1240, 900)
	b.call("Page.navigate", map[string]string{"url": server.URL + page.Path()}, nil)
	b.wait(`document.querySelector("#leg .out").textContent === "1 Gbit/s →"`)
	var text string
	b.eval(`document.body.innerText`, &text)
	for _, want := range []string{
		"rome", "milan", "Nothing is wrong", "← 10 Mbit/s", "90,000 packets/s", "rome-1", "→ 7.81 Mbit/s",
		"1,234 of 1,048,576", "300 of 60,480", "12 s ago", "192.0.2.7:51840",
		"no-route", "No node and no remote CIDR has the destination.", "Make routes and remaps the same",
		"tcp 10.0.1.5:40000 → 10.99.0.1:80", "a stranger",
		"10.0.1.0/24", "vxlan, VNI 1", "GRO and GSO", "26 MiB", `<img src=x onerror="throw 1">`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q on the page:\n%s", want, text)
			text = ""
			break
		}
	}
	check := func(expression string, want any) {
		t.Helper()
		var got any
		if b.eval(expression, &got); got != want {
			t.Errorf("%s is %v, want %v", expression, got, want)
		}
	}
	contrast := func(which string) {
		t.Helper()
		var low []string
		if b.eval(lowContrast, &low); len(low) > 0 {
			t.Errorf("%s: low contrast of %q", which, low)
		}
	}
	const fits = `document.documentElement.scrollWidth <= document.documentElement.clientWidth`
	check(fits, true)
	// three nodes and the peer, in both directions
	check(`document.querySelectorAll("#path .flow:not(.l0)").length`, 8.0)
	check(`getComputedStyle(document.querySelector(".flow.l5")).animationName`, "flow")
	contrast("light")
	b.picture("light")

	b.prefers("prefers-reduced-motion", "reduce")
	check(`getComputedStyle(document.querySelector(".flow.l5")).animationName`, "none")
	b.prefers("prefers-color-scheme", "dark")
	check(`getComputedStyle(document.body).backgroundColor`, "rgb(16, 19, 22)")
	contrast("dark")
	b.picture("dark")
	for _, width := range []int{700, 360} {
		b.size(width, 800)
		check(fits, true)
	}
	contrast("dark and narrow")
	b.picture("dark-narrow")
	b.prefers("prefers-color-scheme", "light")
	b.picture("narrow")
	b.size(1240, 900)

	// By keyboard: Pause, then the other gateway.
	b.key("Tab", 9)
	check(`document.activeElement.id`, "pause")
	b.key("Enter", 13)
	check(`document.querySelector("#pause").getAttribute("aria-pressed")`, "true")
	check(`getComputedStyle(document.querySelector(".flow")).animationPlayState`, "paused")
	b.key("Enter", 13)
	b.key("Tab", 9)
	b.key("Tab", 9)
	b.key("Enter", 13)
	b.wait(
		`document.querySelector("#cluster").textContent === "milan" && document.title.startsWith("(1) milan → rome")`)
	b.eval(`document.body.innerText`, &text)
	for _, want := range []string{"1 thing is wrong", "is UDP 51840 open here?", "never heard", "and 24 more, below",
		"Show all 30", "none yet", "From rome"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q on the page:\n%s", want, text)
		}
	}
	check(`document.querySelectorAll("#all tbody tr").length`, 20.0)
	b.eval(`document.querySelector("#more").click()`, nil)
	check(`document.querySelectorAll("#all tbody tr").length`, 30.0)
	check(`document.querySelector("#all tbody tr td").textContent.startsWith("rome-2")`, true) // faults come first
	contrast("warnings")
	b.picture("warnings")

	// A gateway disappears and comes back.
	b.eval(`location.hash = "rome-milan"`, nil)
	b.wait(`document.querySelector("#cluster").textContent === "rome"`)
	stop()
	b.wait(`!document.querySelector("#lost").hidden && document.title === "lost: rome → milan"`)
	check(`document.querySelector("#lost").innerText.startsWith("The gateway does not answer.")`, true)
	check(`document.querySelector("#lost").innerText.includes("What you see is as of ")`, true)
	check(`getComputedStyle(document.querySelector(".flow")).animationPlayState`, "paused")
	contrast("lost")
	b.picture("lost")
	rome.serve(t, filepath.Join(dir, "rome-milan.sock"))
	b.wait(`document.querySelector("#lost").hidden && document.title === "rome → milan"`)
	server.CloseClientConnections()
	server.Close()
	b.wait(`document.querySelector("#lost").innerText.startsWith("culvert page has ended.")`)

	if len(b.faults) > 0 {
		t.Errorf("the browser complains: %s", b.faults)
	}
	if i := slices.IndexFunc(b.asked, func(url string) bool {
		return !strings.HasPrefix(url,
			server.URL+page.Path())
	}); i >= 0 || len(b.asked) < 4 {
		t.Errorf("the page asks for %s", b.asked)
	}
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
