package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"culvert/gateway/config"
	"culvert/integration/need"
)

// keysDir holds a private key as Liqo's Secrets have it: 32 bytes.
func keysDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	need.NoError(t, os.WriteFile(filepath.Join(dir, "privateKey"), bytes.Repeat([]byte{7}, 32), 0o600))
	return dir
}

// readLiqo reads flags, those that are needed and more; one that is given again wins.
func readLiqo(t *testing.T, more ...string) (*liqoArgs, error) {
	t.Helper()
	set := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	l := addLiqoFlags(set)
	needed := []string{"--liqo", "--name=milan", "--namespace=liqo-tenant-milan", "--remote-cluster-id=milan",
		"--gateway-uid=u", "--node-name=rome-1", "--mode=server", "--keys-dir=" + keysDir(t)}
	need.NoError(t, set.Parse(append(needed, more...)))
	return l.read()
}

func TestLiqoFlags(t *testing.T) {
	for _, tt := range []struct {
		flags string
		check func(*liqoArgs) bool
	}{
		{"", func(l *liqoArgs) bool {
			c := l.base
			return c.WireGuard.ListenPort == 51840 && c.WireGuard.Endpoint == "" && c.WireGuard.Role == config.Server &&
				c.Geneve.ListenPort == 6091 &&
				c.MTU == 1340 && c.ConnectionCheck == config.LiqoConnectionCheck && c.Metrics == "" && c.Health == "" &&
				l.refresh == 10*time.Second &&
				c.Peer == "milan" && !l.keepUnknown && l.pings && l.notes == nil
		}},
		{"--mode=client --endpoint-address=192.0.2.7", func(l *liqoArgs) bool {
			return l.base.WireGuard.Role == config.Client && l.base.WireGuard.ListenPort == 0 &&
				l.base.WireGuard.Endpoint == "192.0.2.7:51840"
		}},
		{"--mode=client --endpoint-address=milan.ex --endpoint-port=30000 --listen-port=7", func(l *liqoArgs) bool {
			return l.base.WireGuard.Endpoint == "milan.ex:30000" && l.base.WireGuard.ListenPort == 7
		}},
		{"--listen-ports=51840", func(l *liqoArgs) bool {
			return l.base.WireGuard.ListenPort == 51840 && l.notes == nil
		}},
		{"--listen-ports=51850,51851", func(l *liqoArgs) bool {
			return l.base.WireGuard.ListenPort == 51850 && slices.Equal(l.notes,
				[]string{"--listen-ports: of 51850,51851, 51850 alone is used"})
		}},
		{"--mode=client --endpoint-address=192.0.2.7 --endpoint-ports=30000,30001", func(l *liqoArgs) bool {
			return l.base.WireGuard.Endpoint == "192.0.2.7:30000" && len(l.notes) == 1
		}},
		{"--mtu=1400 --geneve-port=7000", func(l *liqoArgs) bool {
			return l.base.MTU == 1400 && l.base.Geneve.ListenPort == 7000
		}},
		{"--ping-enabled=false --ping-interval=junk", func(l *liqoArgs) bool {
			return !l.pings && l.base.ConnectionCheck.Interval == 0
		}},
		{"--ping-interval=1s --ping-loss-threshold=3 --ping-port=9", func(l *liqoArgs) bool {
			return l.base.ConnectionCheck == config.ConnectionCheck{Port: 9, Interval: time.Second, Threshold: 3}
		}},
		{"--metrics-address=:8084 --health-probe-bind-address=:8085", func(l *liqoArgs) bool {
			return l.base.Metrics == ":8084" && l.base.Health == ":8085"
		}},
		{"--metrics-address=:8084 --health-probe-bind-address=:8084", func(l *liqoArgs) bool {
			return l.base.Metrics == ":8084" && l.base.Health == ""
		}},
		{"", func(l *liqoArgs) bool {
			return !l.base.Elected && l.election == electionTimes{15 * time.Second, 10 * time.Second, 2 * time.Second}
		}},
		{"--leader-election --pod-name=gw-0 --leader-election-lease-duration=5s --leader-election-renew-deadline=3s --leader-election-retry-period=500ms",
			func(l *liqoArgs) bool {
				return l.base.Elected && l.election == electionTimes{5 * time.Second, 3 * time.Second, time.Second / 2}
			}},
		{"--unknown-source=keep", func(l *liqoArgs) bool { return l.keepUnknown }},
	} {
		l, err := readLiqo(t, strings.Fields(tt.flags)...)
		if err != nil || !tt.check(l) {
			t.Errorf("%q: %v %+v", tt.flags, err, l)
		}
	}
}

func TestWrongLiqoFlags(t *testing.T) {
	for _, tt := range []struct{ flags, want string }{
		{"--name= --namespace= --remote-cluster-id= --gateway-uid= --node-name= --mode=",
			"--name: missing|--namespace: missing|--remote-cluster-id: missing|" +
				"--node-name: missing|--gateway-uid: missing|--mode: missing; want server or client"},
		{"--name=a/b", "--name: \"a/b\" is no name"},
		{"--mode=both", "--mode: \"both\" is neither server nor client"},
		{"--mtu=100 --geneve-port=0 --listen-port=70000", "--mtu: |--geneve-port: |--listen-port: "},
		{"--geneve-port=51840", "--geneve-port: 51840 is --listen-port too"},
		{"--listen-port=1 --listen-ports=1,2", "--listen-ports: not together with --listen-port"},
		{"--listen-ports=x,2", "--listen-ports: \"x\" is not a number"},
		{"--endpoint-address=192.0.2.7", "--endpoint-address: is for --mode=client"},
		{"--mode=client", "--endpoint-address: missing"},
		{"--mode=client --endpoint-address=a_b --endpoint-port=-1",
			"--endpoint-port: |--endpoint-address: \"a_b\" is neither"},
		{"--ping-interval=0s --ping-loss-threshold=0 --ping-port=x",
			"--ping-port: |--ping-interval: |--ping-loss-threshold: "},
		{"--ping-enabled=maybe", "--ping-enabled: "},
		{"--ping-update-status-interval=1ms", "--ping-update-status-interval: "},
		{"--metrics-address=8084 --health-probe-bind-address=:99999",
			"--metrics-address: |--health-probe-bind-address: "},
		{"--leader-election", "--pod-name: "},
		{"--leader-election=perhaps", "--leader-election: "},
		{"--leader-election-lease-duration=10s",
			"--leader-election-lease-duration: 10s is not longer than --leader-election-renew-deadline"},
		{"--leader-election-lease-duration=10500ms",
			"--leader-election-lease-duration: 10.5s: a Lease counts in whole seconds"},
		{"--leader-election-retry-period=9s", "--leader-election-renew-deadline: 10s is not longer than 1.2 times"},
		{"--leader-election-retry-period=1ms", "--leader-election-retry-period: "},
		{"--unknown-source=off", "--unknown-source: off drops"},
		{"--unknown-source=x", "--unknown-source: \"x\" is neither"},
		{"--keys-dir=/nowhere", "--keys-dir: /nowhere/privateKey: "},
	} {
		_, err := readLiqo(t, strings.Fields(tt.flags)...)
		if err == nil {
			t.Errorf("%q: accepted", tt.flags)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		want := strings.Split(tt.want, "|")
		if len(lines) != len(want) {
			t.Errorf("%q: %d causes, want %d:\n%v", tt.flags, len(lines), len(want), err)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(lines[i], want[i]) {
				t.Errorf("%q: %q, want %q", tt.flags, lines[i], want[i])
			}
		}
	}
}
