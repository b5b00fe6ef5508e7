package main

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"culvert/cmd/internal/cli"
	"culvert/gateway/control"
	"culvert/integration/need"
)

// TestDoctor: the examples of its help run, without a gateway: a table, JSON and YAML
// that say the same; and a port that is taken is found with its holder, exit status 1.
func TestDoctor(t *testing.T) {
	dir, port := folder(t)
	file := filepath.Join(dir, "gateway.yaml")
	out, diag, status := run(t, "doctor", "--config", file)
	if status != 0 || diag != "" || !strings.Contains(out, fmt.Sprintf("UDP %d is free", port)) ||
		!strings.Contains(out, "RFC 8439") {
		t.Errorf("status %d, %s%s", status, out, diag)
	}
	var byJSON, byYAML []control.Condition
	out, _, _ = run(t, "doctor", "-o", "json", "--config", file)
	if err := json.Unmarshal([]byte(out), &byJSON); err != nil {
		t.Error(err)
	}
	out, _, _ = run(t, "doctor", "-o", "yaml", "--config", file)
	if err := yaml.Unmarshal([]byte(out), &byYAML); err != nil || len(byYAML) != len(byJSON) ||
		byYAML[0] != byJSON[0] || byJSON[0].Name != "receive buffer" {
		t.Errorf("%v, %+v, %+v", err, byYAML, byJSON)
	}

	taken, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
	need.NoError(t, err)
	defer taken.Close()
	out, diag, status = run(t, "doctor", "--config", file)
	if status != cli.ExitFailed || !strings.Contains(out, "bad   geneve.listenPort") ||
		strings.Count(diag, "\n") != 1 ||
		!strings.Contains(diag, fmt.Sprintf("geneve.listenPort: UDP %d is taken by ", port)) ||
		!strings.Contains(diag, "; stop that, or choose another geneve.listenPort") {
		t.Errorf("status %d, %s%s", status, out, diag)
	}

	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for args, want := range map[string]string{
		"doctor --socket /no/such.sock":               "/no/such.sock: no gateway answers there",
		"doctor --socket rome --config " + file:       "none of the others can be",
		"doctor --config " + filepath.Join(dir, "no"): "no such file",
		"doctor --output xml":                         "--output: want text, json or yaml",
	} {
		out, diag, status := run(t, strings.Fields(args)...)
		if status != cli.ExitBadInput || out != "" || strings.Count(diag, "\n") != 1 || !strings.Contains(diag, want) {
			t.Errorf("culvert %s: status %d, %q, %q; want %q", args, status, out, diag, want)
		}
	}
}

// TestDoctorBesideGateway: ports that a running gateway has are good for the file of that gateway,
// and bad for another file.
func TestDoctorBesideGateway(t *testing.T) {
	r := newReplaceable(t)
	r.hears("READY=1")
	file := filepath.Join(r.dir, "gateway.yaml")
	want := fmt.Sprintf(" is taken by the gateway rome to milan, process %d, which runs", r.Process.Pid)
	if out, diag, status := run(t, "doctor", "--config", file); status != 0 ||
		!strings.Contains(out, "good  geneve.listenPort") || !strings.Contains(out, want) {
		t.Errorf("status %d, %s%s", status, out, diag)
	}
	edit(t, r.dir, "peer: milan", "peer: paris")
	if out, diag, status := run(t, "doctor", "--config", file); status != cli.ExitFailed ||
		!strings.Contains(out, "bad   geneve.listenPort") || strings.Contains(out, want) {
		t.Errorf("status %d, %s%s", status, out, diag)
	}
}
