package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/gateway/path"
	"culvert/gateway/wg"
	"culvert/integration/need"
	"culvert/nat/nattest"
	"culvert/nat/rules"
)

// recorded runs traffic during a capture with the given options, and returns its file.
func recorded(t *testing.T, p *pair, client *control.Client, o control.CaptureOptions, traffic func()) *bytes.Buffer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var file bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, lost, err := client.Capture(ctx, &o, &file)
		if err == nil && lost > 0 {
			err = errors.New("packets were lost")
		}
		done <- err
	}()
	for !p.rome.path.Tapped() {
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
	}
	traffic()
	cancel()
	need.NoError(t, <-done)
	awaits(t, func() bool { return !p.rome.path.Tapped() }, "the end of a capture")
	return &file
}

// captured describes each packet of a capture of traffic: its stage, the addresses of an inner
// packet, the comment.
func captured(t *testing.T, p *pair, client *control.Client, o control.CaptureOptions,
	traffic func()) (lines []string) {
	t.Helper()
	r, err := pcapgo.NewNgReader(recorded(t, p, client, o, traffic), pcapgo.DefaultNgReaderOptions)
	need.NoError(t, err)
	for {
		data, ci, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return lines
		}
		need.NoError(t, err)
		i, _ := r.Interface(ci.InterfaceIndex)
		line := i.Name
		view, err := nattest.Check(data)
		if err != nil && i.Name != "geneve" {
			t.Errorf("%s: %v", i.Name, err)
		}
		if i.Name == "pre" || i.Name == "post" {
			line += " " + view.Source.String() + ">" + view.Destination.String()
		}
		lines = append(lines, strings.TrimSpace(line+" "+strings.Join(options.Comments, "|")))
	}
}

// TestCapture: each stage shows the packet as it is at that point, drops of every layer have their
// reason, and filters match both sides of a translation.
func TestCapture(t *testing.T) {
	p, client := newControlled(t, func(rome, _ *config.Config) {
		rome.WireGuard.Keepalive = 0
		rome.Rules = []rules.FilterRule{{Name: "no-telnet", Protocol: 6,
			Ports: []rules.PortRange{{First: 23, Last: 23}}, Action: rules.FilterDrop}}
	})
	const connection = "; connection 1, udp 10.0.1.5:4000 > 10.61.1.7:53, translated by remap to 10.0.1.5:4000 > 10.0.1.7:53"
	stranger, err := net.Dial("udp4", fmt.Sprintf("127.0.0.1:%d", p.rome.wg.Port()))
	need.NoError(t, err)
	defer stranger.Close()
	traffic := func() {
		p.rome.nodes[0].Send(udpPacket("127.0.0.1", "10.61.1.7", nil))
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.80.0.4", nil)) // no-service
		p.rome.nodes[0].Send(nattest.IP{Source: "10.0.1.5", Destination: "10.61.1.7",
			Body: nattest.TCP{DestinationPort: 23, Flags: nattest.SYN}}.Bytes())
		before := p.rome.wg.Stats().Inbound[wg.NotWireGuard]
		stranger.Write([]byte("noise"))
		for p.rome.wg.Stats().Inbound[wg.NotWireGuard] == before && t.Context().Err() == nil {
			continue // wait until the noise has been refused
		}
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", []byte("there")))
		expect(t, p.milan.nodes[0], "10.62.1.5", "10.0.1.7")
		p.milan.nodes[0].Send(udpPacket("10.0.1.7", "10.62.1.5", []byte("and back"))) // another connection
		for {
			if v, err := nattest.Check(p.rome.nodes[0].Receive()); err == nil && string(v.Payload) == "and back" {
				return
			}
		}
	}
	traffic()
	filter := func(query string) control.Filter {
		v, err := url.ParseQuery(query)
		need.NoError(t, err)
		f, err := control.ParseFilter(v)
		need.NoError(t, err)
		return f
	}
	for _, tt := range []struct {
		name    string
		options control.CaptureOptions
		want    []string // among the lines
		not     []string // parts of lines that must not appear
	}{
		{"before and after", control.CaptureOptions{At: []string{"pre", "post"}}, []string{
			"pre 10.0.1.5>10.61.1.7 forward from rome-1 to tunnel" + connection,
			"post 10.0.1.5>10.0.1.7 forward from rome-1 to tunnel" + connection,
			"pre 127.0.0.1>10.61.1.7 drop: bad-source, from rome-1",
			"pre 10.0.1.5>10.80.0.4 drop: no-service, from rome-1",
			"pre 10.0.1.5>10.61.1.7 drop: filtered, from rome-1, by rule rules/forward/no-telnet",
		}, []string{"geneve", "wireguard"}},
		{"drops", control.CaptureOptions{Drops: true}, []string{
			"pre 127.0.0.1>10.61.1.7 drop: bad-source, from rome-1",
			"pre 10.0.1.5>10.80.0.4 drop: no-service, from rome-1", "wireguard drop: not-wireguard",
		}, []string{"forward from", "post", "deliver"}},
		{"tunnels", control.CaptureOptions{At: []string{"geneve", "wireguard"}}, []string{"geneve", "wireguard",
			"wireguard drop: not-wireguard"},
			[]string{"pre", "post"}},
		{"by the translated address", control.CaptureOptions{At: []string{"pre", "post"},
			Filter: filter("address=10.0.1.7&address=10.61.1.7&protocol=udp")}, []string{
			"pre 10.0.1.5>10.61.1.7 forward from rome-1 to tunnel" + connection,
			"post 10.0.1.5>10.0.1.7 forward from rome-1 to tunnel" + connection,
		}, []string{"drop"}},
		{"by reason", control.CaptureOptions{Reasons: []string{"no-service", "not-wireguard"}}, []string{
			"pre 10.0.1.5>10.80.0.4 drop: no-service, from rome-1", "wireguard drop: not-wireguard",
		}, []string{"bad-source", "forward", "deliver"}},
		{"by verdict", control.CaptureOptions{At: []string{"pre", "post"}, Verdict: "deliver"},
			[]string{"pre 10.0.1.5>10.80.0.4 deliver, from rome-1"}, []string{"drop", "forward"}},
		{"by another node", control.CaptureOptions{At: []string{"geneve", "pre", "post"},
			Filter: filter("node=rome-2")}, nil, []string{""}},
	} {
		lines := captured(t, p, client, tt.options, traffic)
		for _, want := range tt.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: no %q among %q", tt.name, want, lines)
			}
		}
		for _, not := range tt.not {
			if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, not) }) {
				t.Errorf("%s: %q in %q", tt.name, not, lines)
			}
		}
	}
	if p.rome.path.Tapped() {
		t.Error("the tap is left")
	}
}

// TestOneCapture: a second capture is refused, and so are bad options.
func TestOneCapture(t *testing.T) {
	p, client := newControlled(t, nil)
	captured(t, p, client, control.CaptureOptions{}, func() {
		if _, _, err := client.Capture(t.Context(), &control.CaptureOptions{}, io.Discard); err == nil ||
			!strings.Contains(err.Error(), "another capture is running") {
			t.Errorf("a second capture: %v", err)
		}
	})
	for want, o := range map[string]control.CaptureOptions{
		"no stage": {At: []string{"pre", "moon"}},
		"no node":  {Filter: control.Filter{Node: "nope"}},
		`reason: no reason "noise"; there are arp-rate, bad-arp`: {Reasons: []string{"noise"}},
	} {
		if _, _, err := client.Capture(t.Context(), &o, io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	captured(t, p, client, control.CaptureOptions{}, func() {})
}

// TestCaptureOfWaitingFragments: a fragment whose first fragment never comes appears twice, when it
// arrives and when it is dropped.
func TestCaptureOfWaitingFragments(t *testing.T) {
	p, client := newControlled(t, nil)
	later := nattest.IP{Source: "203.0.113.9", Destination: "10.61.1.7", ID: 7, Offset: 800,
		Body: nattest.Raw{Protocol: 17, Payload: nattest.Payload(80, 1)}}
	traffic := func() {
		p.rome.nodes[0].Send(later.Bytes())
		awaits(t, func() bool { return p.rome.engine.Stats().Outbound.Held == 1 }, "a fragment that waits")
		// Once a later packet has been answered, the capture has the fragment.
		p.rome.nodes[0].Send(echo("10.0.1.5", "10.80.0.4", 64, 8))
		expect(t, p.rome.nodes[0], "10.80.0.4", "10.0.1.5")
		p.rome.engine.Sweep(path.Now().Add(31 * time.Second))
	}
	const held, dropped = "pre 203.0.113.9>10.61.1.7 hold, from rome-1",
		"pre 203.0.113.9>10.61.1.7 drop: fragment, from rome-1"
	at := func(address string) control.Filter {
		return control.Filter{Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	for _, tt := range []struct {
		name    string
		options control.CaptureOptions
		want    []string
	}{
		// pings come each second
		{"all of its protocol", control.CaptureOptions{At: []string{"pre"}, Filter: control.Filter{Protocol: "udp"}},
			[]string{held, dropped}},
		{"drops of its address", control.CaptureOptions{Drops: true, Filter: at("203.0.113.9/32")}, []string{dropped}},
		{"of another address", control.CaptureOptions{At: []string{"pre"}, Filter: at("203.0.113.8/32")}, nil},
		{"by reason", control.CaptureOptions{Reasons: []string{"fragment"}}, []string{dropped}},
		{"by another reason", control.CaptureOptions{Reasons: []string{"filtered"}}, nil},
	} {
		if lines := captured(t, p, client, tt.options, traffic); !slices.Equal(lines, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, lines, tt.want)
		}
	}
}

// TestCaptureOfReleasedFragments: a fragment that has waited leaves beside its datagram's first
// one.
func TestCaptureOfReleasedFragments(t *testing.T) {
	p, client := newControlled(t, nil)
	id := uint16(7)
	traffic := func() {
		id++
		first := nattest.IP{Source: "203.0.113.9", Destination: "10.61.1.7", ID: id, MF: true,
			Body: nattest.UDP{SourcePort: 4000 + id, DestinationPort: 53, Payload: nattest.Payload(792, 1)}}
		later := nattest.IP{Source: "203.0.113.9", Destination: "10.61.1.7", ID: id, Offset: 800,
			Body: nattest.Raw{Protocol: 17, Payload: nattest.Payload(80, 1)}}
		p.rome.nodes[0].Send(later.Bytes())
		awaits(t, func() bool { return p.rome.engine.Stats().Outbound.Held == 1 }, "a fragment that waits")
		p.rome.nodes[0].Send(first.Bytes())
		p.milan.nodes[0].Receive()
		p.milan.nodes[0].Receive()
	}
	for address, want := range map[string]int{"203.0.113.9/32": 2, "203.0.113.8/32": 0} {
		o := control.CaptureOptions{At: []string{"post"},
			Filter: control.Filter{Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}}
		lines := captured(t, p, client, o, traffic)
		if len(lines) != want || want == 2 && lines[0] != lines[1] {
			t.Errorf("%s: %q, want %d equal lines", address, lines, want)
		}
	}
}

// TestCaptureOfOwnPackets: packets that the gateway makes and rules at output drop are filtered by
// the gateway's addresses and node.
func TestCaptureOfOwnPackets(t *testing.T) {
	p, client := newControlled(t, nil)
	drop := rules.Rule{Name: "no", Action: rules.ActionDrop,
		Match: []rules.Match{{IP: rules.Operand{Value: "10.0.1.5", Position: rules.PositionDestination}}}}
	if err := p.rome.Put(rules.Key{Kind: "user", Name: "output"},
		rules.Resource{Tables: []rules.Table{{Name: "own", Family: rules.FamilyIPv4,
			Chains: []rules.Chain{{Name: "c", Type: rules.ChainFilter, Hook: rules.HookOutput,
				Rules: []rules.Rule{drop}}}}}}); err != nil {
		t.Fatal(err)
	}
	p.rome.CommitRules()
	traffic := func() {
		before := p.rome.path.Inbound().Dropped(path.DropOutput)
		p.rome.nodes[0].Send(echo("10.0.1.5", "10.80.0.4", 64, 8))
		awaits(t, func() bool { return p.rome.path.Inbound().Dropped(path.DropOutput) > before }, "a drop")
	}
	for node, want := range map[string][]string{"rome-1": {"post 10.80.0.4>10.0.1.5 drop: output, by rule own/c/no"},
		"rome-2": nil} {
		o := control.CaptureOptions{Drops: true, Filter: control.Filter{Node: node,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/32")}}}
		if lines := captured(t, p, client, o, traffic); !slices.Equal(lines, want) {
			t.Errorf("node %s: %q, want %q", node, lines, want)
		}
	}
}

// TestLongCapture: tshark finds no error in a capture of many packets at all stages, forwarded and
// dropped.
func TestLongCapture(t *testing.T) {
	want := 2_000
	if os.Getenv("CULVERT_LONG") != "" {
		want = 1_000_000
	}
	need.Programs(t, "tshark", "tshark")
	p, client := newTraced(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { // as many packets as the nodes accept, until the capture has enough
		defer close(done)
		w := &wanderer{Rand: rand.New(rand.NewPCG(1, 2))}
		for ctx.Err() == nil {
			at, node, b := w.next()
			cluster := []*cluster{p.rome, p.milan}[at]
			cluster.nodes[node].Send(b)
			for _, n := range slices.Concat(p.rome.nodes, p.milan.nodes) {
				n.Drain()
			}
		}
	}()
	name := filepath.Join(t.TempDir(), "long.pcapng")
	file, err := os.Create(name)
	need.NoError(t, err)
	packets, lost, err := client.Capture(t.Context(), &control.CaptureOptions{Count: uint64(want)}, file)
	cancel()
	<-done
	if err := errors.Join(err, file.Close()); err != nil || packets != uint64(want) {
		t.Fatalf("%d packets, %d lost, %v", packets, lost, err)
	}
	// Hosts send bad packets on purpose, so only inner packets that the gateway forwards count.
	// Payloads are random data, whatever their port. The last packet shows that all were read.
	args := []string{"-r", name, "-d", "udp.port==1-65535,data", "-d", "tcp.port==1-65535,data", "-T", "fields", "-e",
		"frame.number",
		"-Y",
		fmt.Sprintf(
			"frame.number == %d or (frame.interface_name == \"post\" or frame.interface_name == \"wireguard\") and "+
				"(_ws.malformed or _ws.expert.severity == error)", want)}
	var out, diag bytes.Buffer
	cmd := need.Command(t, "tshark", args...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil || strings.TrimSpace(out.String()) != fmt.Sprint(want) {
		t.Errorf("tshark: %v, %.2000s\n%s", err, out.String(), diag.String())
	}
	t.Logf("%d packets, %d lost", packets, lost)
}
