package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/integration/need"
)

// agreeFile is a good file in which each of agreeEdits' texts stands once.
const agreeFile = `cluster: rome
peer: milan
mtu: 1340
wireguard: {role: client, privateKeyFile: rome.key, peerPublicKey: %q, endpoint: "127.0.0.1:9", keepalive: 25s}
geneve:
  listenPort: %d
  gatewayAddress: 10.80.0.4
  sourceCheck: node
  nodes:
    - {name: rome-1, vni: 1, underlay: 127.0.0.2, address: 10.80.0.2, podCIDRs: [10.0.1.0/24], encap: geneve, inner: ip}
    - {name: rome-2, vni: 2, underlay: 127.0.0.3, address: 10.80.0.3, podCIDRs: [10.0.2.0/24], encap: vxlan}
network:
  local:  {podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]}
  remote: {podCIDRs: [{cidr: 10.5.0.0/16, remap: 10.61.0.0/16}, {cidr: 10.64.0.0/20}]}
nat:
  unknownSource: auto
  addresses: [{external: 10.70.0.8, internal: 192.0.2.10}, {external: 10.70.0.9, internal: 192.0.2.11, via: rome-2}]
  services:
    - {name: web, address: 10.70.0.20, port: 80, protocol: tcp, backends: [{address: 10.0.1.5, port: 8080}]}
    - {name: dns, address: 10.70.0.20, port: 53, protocol: udp, backends: [{address: 10.0.1.6, port: 9053}]}
rules:
  - {name: no-ssh, protocol: tcp, ports: "22", action: drop}
  - {name: no-net, src: [192.0.2.0/24], action: reject}
mssClamp: auto
metrics: ""
log: {level: info, format: text}
`

const (
	someAddresses = "0.0.0.0 255.255.255.255 224.0.0.1 127.0.0.1 169.254.18.1 10.0.1.9 192.0.2.11"
	somePrefixes  = "0.0.0.0/0 10.0.0.0/8 10.70.0.0/24 169.254.0.0/16 224.0.0.0/4 198.51.100.0/24"
	someNames     = "liqo-tunnel gw-ext rome-1-extcidr rome-1-service-nodeport-routing a/b .. Rome_1.x"
)

// agreeEdits are texts of agreeFile and what stands in their place, one after the other.
var agreeEdits = []struct{ old, new string }{
	{"rome\n", "milan /../../x .. r\x00me Rome_1.x"},
	{"name: rome-1", someNames},
	{"name: web", "dns a/b x"},
	{"name: no-ssh", "no-net a/b x"},
	{"mtu: 1340", "575 576 9000 9001"},
	{"endpoint: \"127.0.0.1:9\"", "127.0.0.1 \"[::1]:9\" \"a_b:9\" \"127.0.0.1:0\""},
	{"keepalive: 25s", "500ms 65535s 65536s"},
	{"gatewayAddress: 10.80.0.4", someAddresses + " 10.80.0.3"},
	{"sourceCheck: node", "cluster pod"},
	{"vni: 2", "1 0 16777215 16777216"},
	{"underlay: 127.0.0.3", "0.0.0.0 224.0.0.1 127.0.0.2"},
	{"address: 10.80.0.3", someAddresses + " 10.80.0.2"},
	{"podCIDRs: [10.0.2.0/24]", "[10.0.1.0/24] [10.0.1.7/32] [10.1.0.0/24] []"},
	{"inner: ip", "ethernet frames"},
	{"encap: vxlan", "geneve gre"},
	{"podCIDRs: [10.0.0.0/16]", "[10.0.0.0/15] [10.0.0.0/24] [10.0.0.0/16,10.0.9.0/24]"},
	{"externalCIDRs: [10.70.0.0/16]", "[10.70.0.0/24] [10.71.0.0/16]"},
	{"cidr: 10.64.0.0/20", somePrefixes},
	{"remap: 10.61.0.0/16", somePrefixes + " 10.5.0.0/16"},
	{"unknownSource: auto", "off 10.70.0.8 10.70.1.1 10.0.1.1"},
	{"external: 10.70.0.9", "10.70.0.8 10.70.0.20 10.70.0.0 10.71.0.1"},
	{"internal: 192.0.2.10", someAddresses + " 10.70.0.9 10.61.0.1"},
	{"via: rome-2", "rome-3 rome-1"},
	{"port: 53", "80 0 65536"},
	{"protocol: udp", "sctp icmp"},
	{"address: 10.0.1.6", someAddresses},
	{"ports: \"22\"", "22-21 1-65535 \"1,2\""},
	{"protocol: tcp, ports", "icmp, ports"},
	{"src: [192.0.2.0/24]", "[0.0.0.0/0] [192.0.2.1/24]"},
	{"mssClamp: auto", "off 215 216 8960"},
	{"metrics: \"\"", "127.0.0.1 \"127.0.0.1:99999\" \"127.0.0.1:0\""},
}

// agreeDual makes agreeFile one of both families, in which each of agreeDualEdits' texts stands
// once.
var agreeDual = strings.NewReplacer(
	"gatewayAddress: 10.80.0.4", `gatewayAddress: [10.80.0.4, "fd80::4"]`,
	"address: 10.80.0.2, podCIDRs: [10.0.1.0/24]",
	`address: [10.80.0.2, "fd80::2"], podCIDRs: [10.0.1.0/24, "fd00:10:0:1::/64"]`,
	"address: 10.80.0.3, podCIDRs: [10.0.2.0/24]",
	`address: [10.80.0.3, "fd80::3"], podCIDRs: [10.0.2.0/24, "fd00:10:0:2::/64"]`,
	"podCIDRs: [10.0.0.0/16], externalCIDRs: [10.70.0.0/16]",
	`podCIDRs: [10.0.0.0/16, "fd00:10::/48"], externalCIDRs: [10.70.0.0/16, "fd00:70::/48"]`,
	"{cidr: 10.64.0.0/20}", `{cidr: 10.64.0.0/20}, {cidr: "fd00:10::/48", remap: "fd00:61::/48"}`,
)

var agreeDualEdits = []struct{ old, new string }{
	{"mtu: 1340", "1279 1280"},
	{"endpoint: \"127.0.0.1:9\"", `"[fe80::7]:9" "fd00::7:9" "[::ffff:127.0.0.1]:9" "[fd00::7]:9"`},
	{`gatewayAddress: [10.80.0.4, "fd80::4"]`,
		`"fd80::4" 10.80.0.4 [10.80.0.4,"fe80::4"] [10.80.0.4,"::ffff:10.80.0.5"] ["fd80::4","fd80::5"] ["fd80::4",10.80.0.4]`},
	{`address: [10.80.0.3, "fd80::3"]`,
		`"fd80::3" ["fd80::3",10.80.0.3] [10.80.0.3,"fd80::2"] [10.80.0.3,"fd80::3%eth0"] [10.80.0.3,"ff02::1"]`},
	{"underlay: 127.0.0.3", `"fe80::3" "fd00::3" "ff02::1" "::ffff:127.0.0.3"`},
	{`remap: "fd00:61::/48"`, `"fd00:61::/56" 10.99.0.0/16 "fe80::/48" "fd00:61::1/48" "fd00:70::/48" "fd00:99::/48"`},
	{"unknownSource: auto", `[10.70.0.1,"fd00:70::1"] "fd00:99::1"`},
	{"external: 10.70.0.9", `[10.70.0.9,"fd00:70::9"]`},
}

// TestCheckAndStartAgree: of more than a hundred edits of a good file, --check accepts
// those with which the gateway starts; the others both refuse with the same words.
func TestCheckAndStartAgree(t *testing.T) {
	dir, _ := folder(t)
	public, _, _ := run(t, "keygen", "--public", filepath.Join(dir, "milan.key"))
	file := filepath.Join(dir, "gateway.yaml")
	accepted, refused := 0, 0
	try := func(good, old, value string) {
		t.Helper()
		key, _, _ := strings.Cut(old, ": ")
		text := fmt.Sprintf(good, strings.TrimSpace(public), freePort(t))
		if strings.Count(text, old) != 1 {
			t.Fatalf("%q stands %d times in the file", old, strings.Count(text, old))
		}
		edited := strings.Replace(text, old, key+": "+value, 1)
		if old == "rome\n" {
			edited = strings.Replace(text, old, fmt.Sprintf("%q\n", value), 1)
		}
		need.NoError(t, os.WriteFile(file, []byte(edited), 0o600))
		_, checked, status := run(t, "gateway", "--check", "--config", file)
		running, diag := startGateway(t, file)
		switch {
		case (status == 0) != running:
			t.Errorf("%s → %q: --check: status %d, %q; start: %q", old, value, status, checked, diag)
		case running:
			accepted++
		case checked != diag:
			t.Errorf("%s → %q: --check says %q, start says %q", old, value, checked, diag)
		default:
			refused++
		}
	}
	for i, list := range []struct {
		good  string
		edits []struct{ old, new string }
	}{{agreeFile, agreeEdits}, {agreeDual.Replace(agreeFile), agreeDualEdits}} {
		before := accepted
		try(list.good, "mtu: 1340", "1340") // the file itself
		if accepted != before+1 {
			t.Fatalf("good file %d is not good", i)
		}
		for _, edit := range list.edits {
			for value := range strings.SplitSeq(edit.new, " ") {
				try(list.good, edit.old, value)
			}
		}
	}
	if t.Logf("%d accepted, %d refused", accepted, refused); accepted < 35 || refused < 90 {
		t.Error("too few of one kind")
	}
}

// startGateway runs a gateway until it says that it is running, or ends by itself. It
// returns what it said then.
func startGateway(t *testing.T, file string) (running bool, said string) {
	t.Helper()
	cmd := culvert("gateway", "--config", file)
	diag, err := cmd.StderrPipe()
	need.NoError(t, err)
	need.NoError(t, cmd.Start())
	kill := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var all bytes.Buffer
	for lines := bufio.NewScanner(diag); lines.Scan(); {
		fmt.Fprintln(&all, lines.Text())
		if !running && strings.Contains(lines.Text(), "gateway running") {
			running = true
			cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); running && err != nil {
		t.Errorf("after SIGTERM: %v: %s", err, &all)
	}
	return running, all.String()
}
