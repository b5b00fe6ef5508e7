package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/gateway/config"
	"culvert/gateway/control"
	"culvert/integration/need"
)

// startPeer starts the gateway of milan, and has rome's file in dir name it. Both ask each other
// whether they are there.
func startPeer(t *testing.T, dir string) {
	t.Helper()
	rome, err := config.Load(filepath.Join(dir, "gateway.yaml"))
	need.NoError(t, err)
	port := freePort(t)
	edit(t, dir, "127.0.0.1:9", fmt.Sprintf("127.0.0.1:%d", port))
	edit(t, dir, `metrics: ""`, "metrics: \"\"\nconnectionCheck: true")
	file := filepath.Join(dir, "milan.yaml")
	text := fmt.Sprintf(`cluster: milan
peer: rome
control: ""
metrics: ""
connectionCheck: true
wireguard: {role: server, privateKeyFile: milan.key, peerPublicKey: %q, listenPort: %d}
geneve:
  listenPort: %d
  gatewayAddress: 10.80.0.4
  nodes: [{name: milan-1, vni: 1, underlay: 127.0.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24]}]
network:
  local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote: {podCIDRs: [{cidr: 10.0.0.0/16, remap: 10.62.0.0/16}]}
`, rome.WireGuard.PrivateKey.Public().Base64(), port, freePort(t))
	need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	log, err := os.Create(filepath.Join(dir, "milan.log"))
	need.NoError(t, err)
	milan := culvert("gateway", "--config", file)
	milan.Stderr = log
	need.NoError(t, milan.Start())
	t.Cleanup(func() {
		milan.Process.Kill()
		milan.Wait()
		log.Close()
	})
	until(t, "a peer that runs", func() bool { return strings.Contains(logFile{log}.String(), "gateway running") },
		logFile{log})
}

// answered is how many pings of the gateway the peer has answered; 0: another process than pid says
// it.
func (r *replaceable) answered(pid int) uint64 {
	s, err := control.NewClient(r.socket).Status(r.t.Context())
	if err != nil || s.PID != pid || s.Tunnel.Check == nil {
		return 0
	}
	return s.Tunnel.Check.Answered
}

// TestSuccessorDies: if the new process is killed at any time in its first second of carrying
// packets, the old one continues, in a session with the peer.
func TestSuccessorDies(t *testing.T) {
	r := newReplaceableAfter(t, func(dir string) { startPeer(t, dir) })
	r.hears("READY=1")
	for i, after := range []time.Duration{50, 120, 200, 400, 800} {
		after *= time.Millisecond
		until(t, "an answer of the peer", func() bool { return r.answered(r.Process.Pid) > 0 }, r.log)
		r.signal(syscall.SIGUSR2)
		r.says("taken over", i+1)
		time.Sleep(after) // this is what is tried
		need.NoError(t, syscall.Kill(r.started(), syscall.SIGKILL))
		r.says("hand-over failed: this gateway goes on", i+1)
		before := r.answered(r.Process.Pid)
		until(t, "an answer of the peer to the previous gateway",
			func() bool { return r.answered(r.Process.Pid) > before }, r.log)
	}
}
