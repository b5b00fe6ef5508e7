package integration

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
)

const (
	uapiLink   = "cv-rome"
	uapiSocket = "/var/run/wireguard/" + uapiLink + ".sock"
)

// TestPeerWgShow: wg(8) shows the gateway's tunnel, and cannot change it.
func TestPeerWgShow(t *testing.T) {
	beside(t, func(t *testing.T) {
		began := time.Now().Truncate(time.Second)
		c := newVXLANClusters(t)
		pingThrough(c.romePod, milanPodAtRome)
		e := exchange{from: c.romePod, to: c.milanPod, listen: podAddress, dial: milanPodAtRome, source: romePodAtMilan,
			bytes: 765_432}
		e.run(t)
		wg := func(args ...string) string { return c.romeGateway.run("wg", args...) }

		if got := strings.TrimSpace(wg("show", "interfaces")); got != uapiLink {
			t.Errorf("wg show interfaces: %q, want %q", got, uapiLink)
		}
		text := wg("show", uapiLink)
		t.Log(text)
		for _, want := range []string{"interface: " + uapiLink, "peer: " + c.milanKey.public, "latest handshake: ",
			"transfer: "} {
			if !strings.Contains(text, want) {
				t.Errorf("wg show: no %q in\n%s", want, text)
			}
		}
		lines := strings.Split(wg("show", uapiLink, "dump"), "\n")
		if len(lines) != 3 || lines[2] != "" {
			t.Fatalf("wg show dump: %q, want a line for the tunnel and one for its peer", lines)
		}
		own, peer := strings.Split(lines[0], "\t"), strings.Split(lines[1], "\t")
		// Not even the public key: wg(8) derives it from the private key, which the gateway does
		// not tell.
		for i, want := range []string{"(none)", "(none)"} {
			if own[i] != want {
				t.Errorf("wg show dump: field %d of the tunnel is %q, want %q", i, own[i], want)
			}
		}
		for i, want := range []string{c.milanKey.public, "(none)", "192.0.2.7:51840"} {
			if peer[i] != want {
				t.Errorf("wg show dump: field %d of the peer is %q, want %q", i, peer[i], want)
			}
		}
		number := func(field int) int {
			n, err := strconv.Atoi(peer[field])
			need.NoError(t, err)
			return n
		}
		if at := time.Unix(int64(number(4)), 0); at.Before(began) || at.After(time.Now()) {
			t.Errorf("latest handshake at %v, want one since %v", at, began)
		}
		for name, field := range map[string]int{"received": 5, "sent": 6} {
			if n := number(field); n < e.bytes || n > 2*e.bytes {
				t.Errorf("wg show dump: %d bytes %s for a stream of %d", n, name, e.bytes)
			}
		}
		if got := number(7); got != 25 {
			t.Errorf("wg show dump: keepalive %d, want 25", got)
		}
		testUAPI(t, c)
		c.romeCulvert.stop()
		if _, err := os.Lstat(uapiSocket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after the end: %v", uapiSocket, err)
		}
	}, programs("wg", "wg", "ping"))
}

// testUAPI: the socket reveals no secret and obeys no command.
func testUAPI(t *testing.T, c *clusters) {
	info, err := os.Stat(uapiSocket)
	need.NoError(t, err)
	if mode := info.Mode(); mode != fs.ModeSocket|0o600 {
		t.Errorf("%s: mode %v", uapiSocket, mode)
	}
	ask := func(request string) string {
		conn, err := net.Dial("unix", uapiSocket)
		need.NoError(t, err)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(startTimeout))
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		conn.(*net.UnixConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		need.NoError(t, err)
		return string(answer)
	}
	state := ask("get=1\n\n")
	for _, secret := range []string{"private_key=", "preshared_key="} {
		if strings.Contains(state, secret) {
			t.Errorf("the socket tells %s", secret)
		}
	}
	other := newKeyPair(t)
	before := c.romeGateway.run("wg", "showconf", uapiLink)
	for _, order := range [][]string{
		{"listen-port", "4711"},
		{"peer", c.milanKey.public, "remove"},
		{"peer", other.public, "allowed-ips", "0.0.0.0/0"},
	} {
		out, err := c.romeGateway.try("", "wg", append([]string{"set", uapiLink}, order...)...)
		if err == nil {
			t.Errorf("wg set %v was obeyed: %s", order, out)
		} else if want := "Operation not permitted"; !strings.Contains(err.Error(), want) {
			t.Errorf("wg set %v: %v, want %s", order, err, want)
		}
	}
	if after := c.romeGateway.run("wg", "showconf", uapiLink); after != before {
		t.Errorf("wg set changed\n%s to\n%s", before, after)
	}
	c.romePod.run("ping", "-c", "2", "-i", "0.05", "-W", "2", milanPodAtRome)
}

// TestPeerPresharedKey has wireguard-go itself as peer. The gateway reads the pre-shared key from
// its file, takes another one at a reload, and goes on with the one before if the file is bad. The
// tunnel stays up, and the key is shown nowhere.
func TestPeerPresharedKey(t *testing.T) {
	beside(t, func(t *testing.T) {
		rome, milan := newPeerHost(t, "rome-gw"), newPeerHost(t, "milan-gw")
		join(rome, milan, "192.0.2.1/24", "192.0.2.7/24", 1500)
		romeKey, milanKey, one, other := newKeyPair(t), newKeyPair(t), newKeyPair(t).private, newKeyPair(t).private
		line := func(key string) string { return "preshared_key=" + hexKey(t, key) }
		peer := startWireGuard(t, milan, milanKey, romeKey.public, line(one))
		startCheckPeer(t, milan)
		dir := t.TempDir()
		need.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
		file := filepath.Join(dir, "psk.key")
		write := func(text string) {
			t.Helper()
			need.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			need.NoError(t, os.Chown(file, unprivilegedUID, unprivilegedUID))
		}
		write(one + "\n")
		p := startGateway(rome, strings.Replace(romeConfig, "role: client", "role: client, presharedKeyFile: "+file,
			1)+"connectionCheck: true\n", romeKey, milanKey.public)
		connected := func() error {
			if rome.metric(`culvert_check_connected{peer="milan"}`) != 1 {
				return errNotYet
			}
			return nil
		}
		eventually(t, "the peer is connected", connected)

		write("c2hvcnQ=")
		p.cmd.Process.Signal(unix.SIGHUP)
		p.awaitOutput(t, "wireguard.presharedKeyFile: ")
		write(other + "\n")
		p.cmd.Process.Signal(unix.SIGHUP)
		p.awaitOutput(t, "wireguard.presharedKeyFile changed")
		need.NoError(t, connected())

		// The peer begins anew, with the other key.
		state, err := peer.IpcGet()
		need.NoError(t, err)
		_, at, _ := strings.Cut(state, "endpoint=")
		at, _, _ = strings.Cut(at, "\n")
		again := []string{"public_key=" + hexKey(t, romeKey.public), "remove=true",
			"public_key=" + hexKey(t, romeKey.public), line(other), "allowed_ip=0.0.0.0/0", "endpoint=" + at,
			"persistent_keepalive_interval=1"}
		need.NoError(t, peer.IpcSet(strings.Join(again, "\n")+"\n"))
		eventually(t, "a handshake with the other key", func() error {
			if state, err := peer.IpcGet(); err != nil || strings.Contains(state, "last_handshake_time_sec=0\n") {
				return errNotYet
			}
			return nil
		})
		need.NoError(t, connected())
		shown, err := rome.get("/metrics")
		need.NoError(t, err)
		shown += p.output() + rome.run("wg", "show", uapiLink, "dump")
		for _, key := range []string{one, other} {
			if strings.Contains(shown, key) || strings.Contains(shown, hexKey(t, key)) {
				t.Errorf("a key is shown in\n%s", shown)
			}
		}
	}, programs("wg", "wg"))
}
