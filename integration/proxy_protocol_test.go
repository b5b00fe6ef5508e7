package integration

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// Servers that expect a PROXY protocol header and answer with its content. Their ports are 8081 and
// up; the addresses and node ports of their Services end in the same number.
const (
	proxyHAProxy = iota + 1
	proxyNginx
	proxyGo          // answers HTTP
	proxyGoFirst     // speaks first
	proxyGoHash      // answers with the SHA-256 of what it receives
	proxyNothingHash // the same, for a Service without the header
	proxyServers
)

// proxied returns the Service of one of them, at pa, for a node's file.
func proxied(server int, protocol string) string {
	return fmt.Sprintf(`  - {name: proxied-%d, clusterIP: [10.96.0.3%[1]d, "fd96::3%[1]d"], port: 80, nodePort: 3003%[1]d, proxyProtocol: %[2]s, `+
		"endpoints: [{address: 10.244.1.5, port: 808%[1]d, node: n1}, {address: \"fd24:1::5\", port: 808%[1]d, node: n1}]}\n", server, protocol)
}

// serveProxied starts them on a host.
func serveProxied(t *testing.T, h *peerHost) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		need.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	h.start(nil, "haproxy", "-db", "-f", file("haproxy.cfg", `
defaults
  mode http
  timeout client 20s
  timeout connect 20s
  timeout server 20s
frontend told
  bind :::8081 v4v6 accept-proxy
  http-request return status 200 content-type text/plain lf-string "%[src] %[src_port] %[dst] %[dst_port]"
`))
	h.start(nil, "nginx", "-e", "stderr", "-p", dir, "-c", file("nginx.conf", fmt.Sprintf(`
daemon off; master_process off; pid nginx.pid; error_log stderr;
events {}
http {
  access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen [::]:8082 ipv6only=off proxy_protocol;
    location / { return 200 "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port"; }
  }
}
`, dir)))
	for server, serve := range map[int]func(net.Conn){
		proxyGo: func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				said := toldOf(c)
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
			}
		},
		proxyGoFirst:     func(c net.Conn) { fmt.Fprintf(c, "%s\n", toldOf(c)) },
		proxyGoHash:      answerHash,
		proxyNothingHash: answerHash,
	} {
		if address := fmt.Sprintf("[::]:808%d", server); server == proxyNothingHash {
			h.accept(t, "tcp", address, serve)
		} else {
			h.acceptHeaded(t, address, serve)
		}
	}
	for _, port := range []string{"8081", "8082"} {
		eventually(t, "port "+port, func() error {
			c, err := h.dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				c.Close()
			}
			return err
		})
	}
}

// toldOf returns the content of a connection's header, in the format of HAProxy's log above.
func toldOf(c net.Conn) string {
	client, server := c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr)
	return fmt.Sprintf("%s %d %s %d", client.IP, client.Port, server.IP, server.Port)
}

func answerHash(c net.Conn) {
	h := sha256.New()
	if _, err := io.Copy(h, c); err == nil {
		fmt.Fprintf(c, "%x", h.Sum(nil))
	}
}

// askProxied asks one of the servers. It returns the header's content as the server saw it, and as
// it should be: the client's own address, and the address that the client asked.
func (h *peerHost) askProxied(server int, to netip.AddrPort) (told, want string, err error) {
	const patience = time.Minute // a SYN is repeated after 1, 3, 7, 15 and 31 s
	c, err := h.dialWithin(patience, "tcp", to.String())
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	own := c.LocalAddr().(*net.TCPAddr)
	want = fmt.Sprintf("%s %d %s %d", own.IP, own.Port, to.Addr(), to.Port())
	if server == proxyGoFirst {
		told, err = bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(told), want, err
	}
	request, err := http.NewRequest(http.MethodGet, "http://served/", nil)
	if err == nil {
		err = request.Write(c)
	}
	if err != nil {
		return "", "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), request)
	if err != nil {
		return "", "", err
	}
	body, err := io.ReadAll(answer.Body)
	return strings.TrimSpace(string(body)), want, err
}

// proxiedAt returns the cluster addresses and node ports of one of the servers, in both families.
func proxiedAt(server int) (all []netip.AddrPort) {
	for family, cluster := range []string{"10.96.0.3", "fd96::3"} {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(cluster+strconv.Itoa(server)), 80),
			netip.AddrPortFrom(netip.MustParseAddr(serviceAddresses["n1"][family]), uint16(30030+server)))
	}
	return all
}

// TestServicesProxyProtocol has HAProxy, nginx and a Go library take the headers that culvert node
// puts in front of the streams of clients, who are hidden behind the node's address: whoever speaks
// first, over both families, with and without TCP's options, from clients that begin with
// super-frames of 64 KiB, and on a path that loses a fifth of what the servers should get, with and
// without selective acknowledgements. What follows the header arrives as it was sent.
func TestServicesProxyProtocol(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		serveProxied(t, l.a)
		var serve []string
		for server := proxyHAProxy; server < proxyServers; server++ {
			protocol := "v2"
			if server == proxyNothingHash {
				protocol = "none"
			}
			serve = append(serve, proxied(server, protocol))
		}
		l.start(serve...)
		all := func(t *testing.T) {
			for _, from := range []*peerHost{l.out, l.c, l.a, l.n1} {
				for server := proxyHAProxy; server <= proxyGoFirst; server++ {
					for _, to := range proxiedAt(server) {
						if told, want, err := from.askProxied(server, to); err != nil || told != want {
							t.Errorf("%s asks server %d at %s: %v; it was told %q, want %q", from.name, server, to,
								err, told, want)
						}
					}
				}
			}
		}
		t.Run("plain", all)
		l.out.ip("route change default via 172.18.0.2 initcwnd 60", "route change default via fd18::2 initcwnd 60")
		t.Run("super-frame first", func(t *testing.T) {
			for _, to := range proxiedAt(proxyGoHash) {
				if _, err := l.out.hash(to, 1<<20); err != nil {
					t.Error(err)
				}
			}
		})
		options := func(value string) {
			for _, option := range []string{"timestamps", "sack", "window_scaling"} {
				l.out.sysctl("net/ipv4/tcp_"+option, value)
			}
		}
		options("0")
		t.Run("no options", all)
		t.Run("stream", func(t *testing.T) {
			compareRates(t, l.out, proxiedAt(proxyNothingHash)[0], proxiedAt(proxyGoHash)[0])
		})
		l.a.feed("table inet losses { chain in { type filter hook input priority 0; tcp dport 8081-8085 numgen random mod 5 == 0 drop\n }\n}\n", "nft", "-f", "-")
		losses := func(t *testing.T, size int64) {
			for i := range 12 {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					t.Parallel()
					server := proxyHAProxy + i%4
					to := proxiedAt(server)[i/4]
					if told, want, err := l.out.askProxied(server, to); err != nil || told != want {
						t.Errorf("server %d at %s: %v; it was told %q, want %q", server, to, err, told, want)
					}
				})
			}
			if _, err := l.out.hash(proxiedAt(proxyGoHash)[0], size); err != nil {
				t.Error(err)
			}
		}
		t.Run("losses, no options", func(t *testing.T) { losses(t, 50_000) })
		options("1")
		t.Run("losses, SACK", func(t *testing.T) { losses(t, 4<<20) })
	}, programs("ip", "ip"), programs("haproxy", "haproxy"), programs("nginx", "nginx"), programs("nft", "nft"))
}

// compareRates sends streams with and without a header, alternately. Each must arrive intact, and
// those with a header as fast as the others, by the median of the pairs' ratios.
func compareRates(t *testing.T, from *peerHost, plain, proxied netip.AddrPort) {
	size := int64(64 << 20)
	if os.Getenv(longEnv) != "" {
		size = 1 << 30
	}
	const pairs = 5
	var ratios []float64
	for i := range pairs {
		var rates [2]float64
		for j := range rates {
			with := (i + j) % 2
			rate, err := from.hash([]netip.AddrPort{plain, proxied}[with], size)
			need.NoError(t, err)
			rates[with] = rate
		}
		t.Logf("%d bytes a stream: %.0f MB/s without a header, %.0f MB/s with one", size, rates[0]/1e6, rates[1]/1e6)
		ratios = append(ratios, rates[1]/rates[0])
	}
	slices.Sort(ratios)
	median := ratios[pairs/2]
	t.Logf("ratios of pairs %.3f: median %.3f", ratios, median)
	if least := 0.95; os.Getenv(longEnv) != "" && median < least {
		t.Errorf("with a header the rate is %.3f of that without, want %.2f", median, least)
	}
}

// hash sends random bytes, checks that the server received the same, and returns the rate in bytes
// a second.
func (h *peerHost) hash(to netip.AddrPort, size int64) (rate float64, err error) {
	c, err := h.dialWithin(time.Minute, "tcp", to.String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	rate, got, want, err := hashOver(c, size)
	if err == nil && got != want {
		err = fmt.Errorf("%d bytes to %s: the hash is %s, want %s", size, to, got, want)
	}
	return rate, err
}

// hashOver sends random bytes on a connection, and returns the rate, the final answer and the hash
// of the bytes.
func hashOver(c net.Conn, size int64) (rate float64, got, want string, err error) {
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	sum, begin := sha256.New(), time.Now()
	if _, err := io.CopyBuffer(io.MultiWriter(c, sum), io.LimitReader(randomBytes(7), size),
		make([]byte, 1<<18)); err != nil {
		return 0, "", "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, "", "", err
	}
	answer, err := io.ReadAll(c)
	return float64(size) / time.Since(begin).Seconds(), string(answer), hex.EncodeToString(sum.Sum(nil)), err
}

// romeProxied is the part of rome's configuration about its pod: services for milan, and mapped
// addresses for its own node.
func romeProxied() string {
	s := "nat:\n  addresses:\n  - {external: 10.70.0.9, internal: 10.0.1.5, proxyProtocol: v2}\n  services:\n"
	for server := proxyHAProxy; server < proxyServers; server++ {
		protocol := "v2"
		if server == proxyNothingHash {
			protocol = "none"
		}
		s += fmt.Sprintf("  - {name: proxied-%d, address: 10.70.0.2%[1]d, port: 80, proxyProtocol: %[2]s, backends: [{address: 10.0.1.5, port: 808%[1]d}]}\n", server, protocol)
	}
	return s
}

// TestGatewayProxyProtocol puts the same servers behind a gateway. Pods of the other cluster use
// its services; its own node, whose kernel leaves segmentation and checksums to the gateway, uses a
// mapped address.
func TestGatewayProxyProtocol(t *testing.T) {
	beside(t, func(t *testing.T) {
		c := newMilan(t)
		c.addRomeWith(romeProxied())
		c.romeNode.ip("route add 10.70.0.0/16 via " + romeInternal)
		serveProxied(t, c.romePod)
		service := func(server int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("10.72.0.2"+strconv.Itoa(server)), 80)
		}
		mapped := func(server int) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("10.70.0.9"), uint16(8080+server))
		}
		for server := proxyHAProxy; server <= proxyGoFirst; server++ {
			told, want, err := c.milanPod.askProxied(server, service(server))
			// The header has both ends' addresses as rome sees them.
			want = strings.Replace(strings.Replace(want, podAddress+" ", milanPodAtRome+" ", 1), " 10.72.",
				" 10.70.", 1)
			if err != nil || told != want {
				t.Errorf("milan's pod asks server %d: %v; it was told %q, want %q", server, err, told, want)
			}
			if told, want, err := c.romeNode.askProxied(server, mapped(server)); err != nil || told != want {
				t.Errorf("rome's node asks server %d: %v; it was told %q, want %q", server, err, told, want)
			}
		}
		if _, err := c.romeNode.hash(mapped(proxyGoHash), 64<<20); err != nil {
			t.Error(err)
		}
		compareRates(t, c.milanPod, service(proxyNothingHash), service(proxyGoHash))
	}, programs("haproxy", "haproxy"), programs("nginx", "nginx"))
}
