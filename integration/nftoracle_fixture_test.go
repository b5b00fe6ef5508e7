package integration

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"culvert/integration/need"
	"culvert/nat"
)

var oracleUpdate = flag.Bool("oracle.update", false, "write the kernel's answers for nat's own tests anew")

const fixturePackets = 250

// TestKernelFixtures records what the kernel makes of packets, as captures with an interface
// "device:in" and "device:out" for each device, and compares them with the checked-in ones. nat's
// own tests replay them where there is no kernel to ask.
func TestKernelFixtures(t *testing.T) {
	needKernel(t)
	captured := capturedConfigs(t)
	liqo := func(i int) func(*maker) *nat.Config {
		return func(m *maker) *nat.Config { return m.liqo(captured[i]) }
	}
	for i, f := range []struct {
		name     string
		families families
		config   func(*maker) *nat.Config
	}{
		{"random-dual-1", dualStack, (*maker).random}, {"random-dual-2", dualStack, (*maker).random},
		{"random-ipv6", onlyIPv6, (*maker).random}, {"random-ipv4", onlyIPv4, (*maker).random},
		{"generated-dual", dualStack, (*maker).generated},
		{"generated-ipv4", onlyIPv4, (*maker).generated}, {"generated-ipv6", onlyIPv6, (*maker).generated},
		{"liqo-cluster-b", onlyIPv4, liqo(0)}, {"liqo-cluster-c", onlyIPv4, liqo(1)},
	} {
		t.Run(f.name, func(t *testing.T) {
			// In one run of twenty the kernel forwards an ICMP error that it drops in the others,
			// so one of three runs must equal the file.
			for run := 1; ; run++ {
				m := &maker{Rand: rand.New(rand.NewPCG(2027, uint64(i))), families: f.families, fixture: true}
				config := f.config(m)
				text, err := json.MarshalIndent(config, "", "\t")
				need.NoError(t, err)
				r := newRecorder(t, config)
				c := &comparison{t: t, counts: map[string]int{}, record: r.write, limit: fixturePackets}
				c.round(m, config)
				err = r.sameAs(filepath.Join("../nat/testdata/kernel", f.name), append(text, '\n'))
				if err == nil {
					return
				}
				if t.Logf("run %d: %v", run, err); run == 3 {
					t.Fatal("write them anew with -oracle.update and look at the difference")
				}
			}
		})
	}
}

// A recorder writes a capture.
type recorder struct {
	t       *testing.T
	buffer  bytes.Buffer
	writer  *pcapgo.NgWriter
	devices []oracleDevice
}

func newRecorder(t *testing.T, c *nat.Config) *recorder {
	r := &recorder{t: t, devices: oracleDevicesOf(c)}
	for _, d := range r.devices {
		for _, side := range []string{":in", ":out"} {
			i := pcapgo.NgInterface{Name: d.name + side, LinkType: layers.LinkTypeRaw, SnapLength: 0}
			var err error
			if r.writer == nil {
				options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "culvert"}}
				r.writer, err = pcapgo.NewNgWriterInterface(&r.buffer, i, options)
			} else {
				_, err = r.writer.AddInterface(i)
			}
			need.NoError(t, err)
		}
	}
	return r
}

// write records a packet and the kernel's output for it.
func (r *recorder) write(now nat.Time, in nat.Link, b []byte, sent []output) {
	packet := func(link nat.Link, side int, b []byte) {
		at := slices.IndexFunc(r.devices, func(d oracleDevice) bool { return d.link == link })
		err := r.writer.WritePacket(gopacket.CaptureInfo{
			Timestamp: time.Unix(0, int64(now)).UTC(), CaptureLength: len(b), Length: len(b),
			InterfaceIndex: 2*at + side,
		}, b)
		if err != nil {
			r.t.Fatal(err)
		}
	}
	packet(in, 0, b)
	for _, o := range sent {
		packet(o.link, 1, o.bytes)
	}
}

// sameAs compares the capture and its configuration with the files of that name, or writes the
// files.
func (r *recorder) sameAs(name string, config []byte) error {
	if err := r.writer.Flush(); err != nil {
		return err
	}
	for suffix, want := range map[string][]byte{".pcapng": r.buffer.Bytes(), ".json": config} {
		if *oracleUpdate {
			if err := os.WriteFile(name+suffix, want, 0o644); err != nil {
				return err
			}
		}
		if got, err := os.ReadFile(name + suffix); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%s is not what this kernel does (%v)", name+suffix, err)
		}
	}
	return nil
}
