package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"culvert/cmd/internal/cli"
	"culvert/integration/need"
)

// asCommand makes this test binary be culvert.
const asCommand = "CULVERT_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func culvert(args ...string) *exec.Cmd {
	cmd := need.Self(args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

// run returns what culvert printed and its exit status.
func run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, diag bytes.Buffer
	cmd := culvert(args...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), diag.String(), cmd.ProcessState.ExitCode()
}

// folder holds a good gateway.yaml on free ports, with its keys.
func folder(t *testing.T) (dir string, genevePort int) {
	t.Helper()
	dir = t.TempDir()
	if _, diag, status := run(t, "keygen", filepath.Join(dir, "rome.key")); status != 0 {
		t.Fatal(diag)
	}
	public, _, _ := run(t, "keygen", filepath.Join(dir, "milan.key"))
	genevePort = freePort(t)
	file := fmt.Sprintf(`cluster: rome
peer: milan
wireguard: {role: client, privateKeyFile: rome.key, peerPublicKey: %q, endpoint: "127.0.0.1:9"}
geneve:
  listenPort: %d
  gatewayAddress: 10.80.0.4
  nodes: [{name: rome-1, vni: 1, underlay: 127.0.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24]}]
network:
  local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote: {podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.61.0.0/16}]}
metrics: ""
`, strings.TrimSpace(public), genevePort)
	need.NoError(t, os.WriteFile(filepath.Join(dir, "gateway.yaml"), []byte(file), 0o600))
	return dir, genevePort
}

// portsGiven are the ports that freePort has returned or tried.
var portsGiven sync.Map

// freePort returns a port that nobody has, neither of UDP nor of TCP, and that the kernel gives to
// nobody who asks for any: a process that is about to open it, as one of those beside this test,
// would find it taken. It returns each port once.
func freePort(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	need.NoError(t, err)
	var first int
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		t.Fatalf("ports that the kernel gives away: %q, %v", text, err)
	}
	first = max(first, 4096) // where it gives away nearly all
	for range 1000 {
		port := first - 1 - rand.IntN(first/2)
		if _, again := portsGiven.LoadOrStore(port, true); again {
			continue
		}
		packets, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
		if err != nil {
			continue
		}
		packets.Close()
		if streams, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port}); err == nil {
			streams.Close()
			return port
		}
	}
	t.Fatalf("no port below %d is free", first)
	return 0
}

// edit replaces a part of gateway.yaml.
func edit(t *testing.T, dir, old, new string) {
	t.Helper()
	path := filepath.Join(dir, "gateway.yaml")
	text, err := os.ReadFile(path)
	need.NoError(t, err)
	if !bytes.Contains(text, []byte(old)) {
		t.Fatalf("no %q in the file", old)
	}
	need.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(new), 1), 0o600))
}

// TestBadInput: exit status 2 and one line per cause, which names the field or the
// flag, and nothing on standard output.
func TestBadInput(t *testing.T) {
	dir, genevePort := folder(t)
	config := filepath.Join(dir, "gateway.yaml")
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: genevePort})
	need.NoError(t, err)
	defer taken.Close()
	for _, tt := range []struct {
		name string
		args []string
		want []string // one per line
	}{
		{"unknown command", []string{"gatewya"}, []string{"unknown command"}},
		{"no file", []string{"gateway"}, []string{`required flag(s) "config" not set`}},
		{"missing file", []string{"gateway", "--config", filepath.Join(dir, "none.yaml")}, []string{"--config: "}},
		{"Geneve port in use", []string{"gateway", "--config", config}, []string{"geneve.listenPort: UDP port"}},
		{"key exists", []string{"keygen", filepath.Join(dir, "rome.key")}, []string{"--public"}},
		{"bad output", []string{"gateway", "--check", "-o", "xml", "--config", config}, []string{"--output: "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, diag, status := run(t, tt.args...)
			lines := strings.Split(strings.TrimSuffix(diag, "\n"), "\n")
			if status != cli.ExitBadInput || out != "" || len(lines) != len(tt.want) {
				t.Fatalf("status %d, standard output %q, standard error %q", status, out, diag)
			}
			for i, want := range tt.want {
				if !strings.HasPrefix(lines[i], "culvert: ") || !strings.Contains(lines[i], want) {
					t.Errorf("line %d is %q, want %q in it", i, lines[i], want)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	dir, _ := folder(t)
	config := filepath.Join(dir, "gateway.yaml")
	if out, diag, status := run(t, "gateway", "--check", "--config", config); status != 0 ||
		!strings.Contains(out, "good") {
		t.Fatalf("status %d, %q, %q", status, out, diag)
	}
	out, _, _ := run(t, "gateway", "--check", "-o", "json", "--config", config)
	var view checked
	need.NoError(t, json.Unmarshal([]byte(out), &view))
	if len(view.Nodes) != 1 || len(view.Nodes[0].Routes) != 1 || view.Nodes[0].Routes[0].String() != "10.61.0.0/16" ||
		view.UnknownSource != "10.70.0.0" {
		t.Errorf("got %+v", view)
	}
}

// startLogging starts the gateway of a folder, and returns its standard error.
func startLogging(t *testing.T, dir string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := culvert("gateway", "--config", filepath.Join(dir, "gateway.yaml"))
	diag, err := cmd.StderrPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	return cmd, diag
}

// TestGatewaySignals: SIGHUP with a bad file changes nothing, with a good one it
// applies, the log's level too; SIGTERM ends with status 0.
func TestGatewaySignals(t *testing.T) {
	dir, _ := folder(t)
	edit(t, dir, `metrics: ""`, "metrics: \"\"\nlog: {format: json}")
	cmd, diag := startLogging(t, dir)
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	messages := json.NewDecoder(diag)
	await := func(want string) {
		t.Helper()
		for {
			var m struct{ Msg, Error string }
			if err := messages.Decode(&m); err != nil {
				t.Fatalf("no message %q before the end: %v", want, err)
			}
			if strings.Contains(m.Msg+" "+m.Error, want) {
				return
			}
		}
	}
	await("gateway running")
	edit(t, dir, "vni: 1,", "vni: -1,")
	cmd.Process.Signal(syscall.SIGHUP)
	await("geneve.nodes[0].vni: ")
	edit(t, dir, "vni: -1,", "vni: 2,")
	cmd.Process.Signal(syscall.SIGHUP)
	await("configuration applied: nodes: 1 changed")
	edit(t, dir, "format: json", "format: json, level: error")
	cmd.Process.Signal(syscall.SIGHUP)
	await("configuration applied: log.level changed")
	cmd.Process.Signal(syscall.SIGTERM)
	if rest, err := io.ReadAll(io.MultiReader(messages.Buffered(), diag)); err != nil || strings.Contains(string(rest),
		"stopping") {
		t.Errorf("at level error: %s, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func TestKeygen(t *testing.T) {
	name := filepath.Join(t.TempDir(), "k")
	made, _, status := run(t, "keygen", name)
	if status != 0 {
		t.Fatal(status)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	if again, _, _ := run(t, "keygen", "--public", name); again != made || len(made) != 45 {
		t.Errorf("public key %q, then %q", made, again)
	}
}

// TestSignalAtTheEnd interrupts a command at the moments after it has printed, when its work is
// done.
func TestSignalAtTheEnd(t *testing.T) {
	for range 100 {
		cmd := culvert("version")
		out, err := cmd.StdoutPipe()
		need.NoError(t, err)
		need.NoError(t, cmd.Start())
		out.Read(make([]byte, 1))
		cmd.Process.Signal(os.Interrupt) // or it has ended, which is fine
		need.NoError(t, cmd.Wait())
	}
}

// TestHangUpAtTheEnd sends SIGHUP to a gateway at all the moments of its end.
func TestHangUpAtTheEnd(t *testing.T) {
	dir, _ := folder(t)
	for range 5 {
		cmd, diag := startLogging(t, dir)
		said := make(chan string, 1)
		running := make(chan struct{})
		go func() {
			var all strings.Builder
			for lines := bufio.NewScanner(diag); lines.Scan(); {
				if fmt.Fprintln(&all, lines.Text()); strings.Contains(lines.Text(), "gateway running") {
					close(running)
				}
			}
			said <- all.String()
		}()
		select {
		case <-running:
		case text := <-said:
			t.Fatalf("%v: %s", cmd.Wait(), text)
		}
		cmd.Process.Signal(syscall.SIGTERM)
		for len(said) == 0 { // it has its standard error until its end
			cmd.Process.Signal(syscall.SIGHUP)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, <-said)
		}
	}
}
