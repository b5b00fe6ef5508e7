package doctor

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"

	"culvert/gateway/control"
	"culvert/geneve/udp"
	"culvert/integration/need"
)

// whole are sockets with every feature.
func whole(change func(*udp.Stats)) map[string]udp.Stats {
	s := udp.Stats{ReceiveBuffer: 4 << 20, SendBuffer: 4 << 20, GRO: true, GSO: true, OverflowsKnown: true}
	all := map[string]udp.Stats{"geneve": s}
	if change != nil {
		change(&s)
	}
	all["wireguard"] = s
	return all
}

// TestConditions: a missing feature of the machine is rated poor, with its cost and remedy,
// whichever socket lacks it.
func TestConditions(t *testing.T) {
	for _, tt := range []struct {
		name    string
		subject Subject
		poor    string // the condition that must be poor
		found   string
	}{
		{"a machine with everything", Subject{Sockets: whole(nil)}, "", "4 MiB of 4 MiB"},
		{"a small receive buffer", Subject{Sockets: whole(func(s *udp.Stats) { s.ReceiveBuffer = 212992 })},
			"receive buffer", "208 KiB of 4 MiB"},
		{"a small send buffer", Subject{Sockets: whole(func(s *udp.Stats) { s.SendBuffer = 64 << 10 })}, "send buffer",
			"64 KiB of 4 MiB"},
		{"no UDP_SEGMENT", Subject{Sockets: whole(func(s *udp.Stats) { s.GSO = false })}, "UDP_SEGMENT (GSO)", "off"},
		{"no UDP_GRO", Subject{Sockets: whole(func(s *udp.Stats) { s.GRO = false })}, "UDP_GRO", "off"},
		{"nobody counts overflows", Subject{Sockets: whole(func(s *udp.Stats) { s.OverflowsKnown = false })},
			"overflow counter", "does not tell"},
		{"no limit", Subject{Sockets: whole(nil), Memory: Memory{Connections: 1 << 20}}, "",
			"no limit; up to 1048576 connections"},
		{"much memory", Subject{Sockets: whole(nil), Memory: Memory{128 << 20, "the control group", 131072}}, "",
			"128 MiB by the control group; up to 131072 connections"},
		{"little memory", Subject{Sockets: whole(nil), Memory: Memory{32 << 20, "GOMEMLIMIT", 46811}}, "memory",
			"32 MiB by GOMEMLIMIT; up to 46811 connections"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := Examine(&tt.subject)
			var told bool
			for _, c := range all[:7] { // the other conditions depend on this machine
				told = told || strings.Contains(c.Found, tt.found)
				if want := c.Name == tt.poor; (c.State == poor) != want || (c.State == good) == want ||
					(c.Costs != "") != want || (c.Remedy != "") != want {
					t.Errorf("%+v", c)
				}
			}
			if !told {
				t.Errorf("%+v: nothing was found to be %q", all, tt.found)
			}
		})
	}
}

// TestHere: without a gateway, doctor opens a socket to find out.
func TestHere(t *testing.T) {
	seen := make(map[string]control.Condition)
	for _, c := range Examine(new(Subject)) {
		if seen[c.Name].Name != "" || c.State != good && c.State != poor {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = c
	}
	for _, name := range []string{"receive buffer", "UDP_GRO", "overflow counter", "memory", "CPUs", "cipher",
		"CPU features"} {
		if seen[name].Found == "" {
			t.Errorf("nothing about %s", name)
		}
	}
	if c := seen["cipher"]; c.State != good || !strings.Contains(c.Found, "RFC 8439") || !strings.Contains(c.Found,
		"Gbit/s a core") {
		t.Errorf("%+v", c)
	}
}

// TestCipherThatIsWrong: one wrong bit of the test vector is noticed.
func TestCipherThatIsWrong(t *testing.T) {
	for _, b := range [][]byte{vector.nonce, vector.data, vector.plain, vector.sealed} {
		b[3] ^= 1
		if c := cipher(); c.State != bad || c.Remedy == "" {
			t.Errorf("%+v", c)
		}
		b[3] ^= 1
	}
}

// TestFeatures: an amd64 CPU without AVX2 or BMI2 is poor; x/crypto asks for no feature on others.
func TestFeatures(t *testing.T) {
	for _, tt := range []struct {
		arch  string
		fast  bool
		state string
		found string
	}{
		{"amd64", true, good, "AVX2, BMI2"},
		{"amd64", false, poor, "no AVX2"},
		{"arm64", false, good, "Poly1305 has none"},
		{"riscv64", false, good, "unknown on riscv64"},
	} {
		c := judge(tt.arch, tt.fast)
		if c.State != tt.state || !strings.Contains(c.Found, tt.found) || (c.Remedy != "") != (c.State == poor) {
			t.Errorf("%s, %v: %+v", tt.arch, tt.fast, c)
		}
	}
	had := cpu.X86
	defer func() { cpu.X86 = had }()
	cpu.X86.HasSSSE3, cpu.X86.HasAVX2, cpu.X86.HasBMI2 = true, true, true
	if c := features(); c.State != good {
		t.Errorf("a CPU with all: %+v", c)
	}
	for _, feature := range []*bool{&cpu.X86.HasSSSE3, &cpu.X86.HasAVX2, &cpu.X86.HasBMI2} {
		*feature = false
		if c := features(); (c.State == poor) != (runtime.GOARCH == "amd64") {
			t.Errorf("a CPU that lacks one: %+v", c)
		}
		*feature = true
	}
}

// TestPorts: a port is free, or its owner is named.
func TestPorts(t *testing.T) {
	u, err := net.ListenPacket("udp4", "127.0.0.1:0")
	need.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	need.NoError(t, err)
	name, err := os.ReadFile("/proc/self/comm")
	need.NoError(t, err)
	ports := []Port{{Field: "geneve.listenPort", Network: "udp", Address: u.LocalAddr().String()},
		{Field: "metrics", Network: "tcp", Address: l.Addr().String()}}
	for _, p := range ports {
		c := p.condition()
		if want := " is taken by " + strings.TrimSpace(string(name)) + ", process "; c.State != bad ||
			!strings.Contains(c.Found, want) || !strings.Contains(c.Remedy, p.Field) {
			t.Errorf("%+v, want %q", c, want)
		}
		p.Gateways = map[int]string{os.Getpid() + 1: "paris to milan"}
		if c := p.condition(); c.State != bad {
			t.Errorf("taken by another gateway: %+v", c)
		}
		p.Gateways = map[int]string{os.Getpid(): "rome to milan"}
		if c := p.condition(); c.State != good || !strings.HasSuffix(c.Found,
			fmt.Sprintf(" is taken by the gateway rome to milan, process %d, which runs", os.Getpid())) {
			t.Errorf("taken by the gateway itself: %+v", c)
		}
	}
	u.Close()
	l.Close()
	for _, p := range ports {
		if c := p.condition(); c.State != good || c.Found != strings.ToUpper(p.Network)+" "+p.Address+" is free" {
			t.Errorf("%+v", c)
		}
	}
	odd := Port{Field: "health", Network: "tcp", Address: "nowhere:1:2"}
	if c := odd.condition(); c.State != bad || c.Remedy != "correct health" {
		t.Errorf("%+v", c)
	}
}
