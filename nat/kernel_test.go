package nat_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"culvert/integration/need"
	"culvert/nat"
	"culvert/nat/nattest"
)

// TestKernelCaptures replays what the kernel's nftables and policy routing made of packets, by
// random rules, by generated ones and by those of Liqo's controllers. TestKernelFixtures of package
// integration writes the captures, and compares them with the running kernel.
func TestKernelCaptures(t *testing.T) {
	names, err := filepath.Glob("testdata/kernel/*.pcapng")
	if err != nil || len(names) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".pcapng"), func(t *testing.T) {
			text, err := os.ReadFile(strings.TrimSuffix(name, "pcapng") + "json")
			need.NoError(t, err)
			var c nat.Config
			need.NoError(t, json.Unmarshal(text, &c))
			replay(t, name, &c)
		})
	}
}

// captured is a packet of a capture.
type captured struct {
	device string
	out    bool
	bytes  []byte
	at     nat.Time
}

func replay(t *testing.T, name string, c *nat.Config) {
	c.SourceCheck = nat.SourceCheckCluster // like a kernel without a reverse path filter
	e, err := nat.New([16]byte{9}, c)
	need.NoError(t, err)
	links := map[string]nat.Link{"liqo-tunnel": nat.Tunnel}
	for _, n := range c.Nodes {
		if links[n.Name] = n.Link; n.Device != "" {
			links[n.Device] = n.Link
		}
	}
	packets := readCapture(t, name)
	forwarded := 0
	for i := 0; i < len(packets); {
		p := packets[i]
		if p.out {
			t.Fatalf("packet %d comes out of nowhere", i+1)
		}
		v, sent := process(t, e, links[p.device], p.bytes, p.at)
		i++
		for n := 0; i < len(packets) && packets[i].out; i, n = i+1, n+1 {
			want := packets[i]
			if n >= len(sent) || v.Out != links[want.device] || !bytes.Equal(sent[n], want.bytes) {
				got, _ := nattest.Check(p.bytes)
				t.Fatalf("packet %d (%v → %v, protocol %d): verdict %+v, sent %x, want %x at %s", i, got.Source,
					got.Destination, got.Protocol, v, sent,
					want.bytes, want.device)
			}
			sent[n] = nil
			forwarded++
		}
		for _, b := range sent {
			if b != nil {
				t.Fatalf("packet %d: sent %x, the kernel did not", i, b)
			}
		}
	}
	if forwarded < 80 {
		t.Errorf("only %d packets were forwarded", forwarded)
	}
}

func readCapture(t *testing.T, name string) []captured {
	f, err := os.Open(name)
	need.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	need.NoError(t, err)
	var all []captured
	for {
		b, info, err := r.ReadPacketData()
		if err == io.EOF {
			return all
		}
		need.NoError(t, err)
		i, err := r.Interface(info.InterfaceIndex)
		need.NoError(t, err)
		device, side, _ := strings.Cut(i.Name, ":")
		all = append(all, captured{device, side == "out", b, nat.Time(info.Timestamp.UnixNano())})
	}
}
