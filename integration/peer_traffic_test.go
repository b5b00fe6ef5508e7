package integration

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"culvert/integration/need"
)

// pingThrough pings until the first answer, which handshakes and ARP delay, and then requires an
// answer to each of a few requests of several sizes.
func pingThrough(from *peerHost, to string) {
	from.t.Helper()
	eventually(from.t, from.name+": ping "+to, func() error {
		_, err := from.try("", "ping", "-c", "1", "-W", "1", to)
		return err
	})
	for _, size := range pingSizes {
		from.run("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "-s", strconv.Itoa(size), to)
	}
}

// pingSizes fill the MTU over IPv6, over IPv4, or need fragments.
var pingSizes = []int{0, 56, 1292, 1312, 4001}

// An exchange is a TCP connection with random bytes in both directions at once; both ends compare
// SHA-256 sums.
type exchange struct {
	from, to             *peerHost
	listen, dial, source string // source is the client's address as the server sees it
	bytes                int    // in each direction
}

const (
	exchangePort    = "5201"
	exchangeTimeout = 3 * time.Minute // an emulated machine is slow, and so is TCP where packets are lost
)

func (e exchange) run(t *testing.T) {
	t.Helper()
	l, err := e.to.listen("tcp", net.JoinHostPort(e.listen, exchangePort))
	need.NoError(t, err)
	defer l.Close()
	seed := rand.Uint64()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		if host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); host != e.to.family.of(e.source) {
			conn.Close()
			served <- fmt.Errorf("connection came from %s, want %s", host, e.to.family.of(e.source))
			return
		}
		served <- e.swap(conn, seed+1, seed)
	}()
	began := time.Now()
	conn, err := e.from.dial("tcp", net.JoinHostPort(e.dial, exchangePort))
	if err != nil {
		t.Fatalf("%s → %s: %v", e.from.name, e.dial, err)
	}
	if err := e.swap(conn, seed, seed+1); err != nil {
		t.Errorf("%s: %v (seed %d)", e.from.name, err, seed)
	}
	if err := <-served; err != nil {
		t.Errorf("%s: %v (seed %d)", e.to.name, err, seed)
	}
	if !t.Failed() {
		took := time.Since(began)
		t.Logf("TCP %s → %s and back: %d bytes each way in %v, SHA-256 equal, %.0f Mbit/s", e.from.name,
			e.to.name, e.bytes,
			took.Round(time.Millisecond), float64(2*8*e.bytes)/took.Seconds()/1e6)
	}
}

// swap writes the random bytes of one seed and expects those of another.
func (e exchange) swap(conn net.Conn, send, expect uint64) error {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(exchangeTimeout))
	wrote := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, io.LimitReader(randomBytes(send), int64(e.bytes)))
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		wrote <- err
	}()
	got, want := sha256.New(), sha256.New()
	n, err := io.Copy(got, conn)
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	io.CopyN(want, randomBytes(expect), int64(e.bytes))
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		return fmt.Errorf("%d bytes arrived with SHA-256 %x, want %d with %x", n, got.Sum(nil), e.bytes, want.Sum(nil))
	}
	return <-wrote
}

// randomBytes returns an endless stream that a seed determines.
func randomBytes(seed uint64) io.Reader {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return rand.NewChaCha8(key)
}

// datagrams sends UDP datagrams of the given sizes, each of which comes back.
func (e exchange) datagrams(t *testing.T, sizes ...int) {
	t.Helper()
	var server net.PacketConn
	err := e.to.do(func() (err error) {
		server, err = net.ListenPacket("udp", e.to.family.of(net.JoinHostPort(e.listen, exchangePort)))
		return err
	})
	need.NoError(t, err)
	defer server.Close()
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			server.WriteTo(append([]byte(from.String()), buffer[:n]...), from)
		}
	}()
	client, err := e.from.dial("udp", net.JoinHostPort(e.dial, exchangePort))
	need.NoError(t, err)
	defer client.Close()
	_, port, _ := net.SplitHostPort(client.LocalAddr().String())
	seed := rand.Uint64()
	random, buffer := randomBytes(seed), make([]byte, 1<<16)
	for _, size := range sizes {
		sent := make([]byte, size)
		io.ReadFull(random, sent)
		if _, err := client.Write(sent); err != nil {
			t.Fatal(err)
		}
		client.SetReadDeadline(time.Now().Add(startTimeout))
		n, err := client.Read(buffer)
		if err != nil {
			t.Fatalf("UDP, %d bytes: %v (seed %d)", size, err, seed)
		}
		if want := append([]byte(e.to.family.of(net.JoinHostPort(e.source, port))),
			sent...); !bytes.Equal(buffer[:n], want) {
			t.Errorf("UDP, %d bytes: %d bytes came back, unlike the %d expected from %s (seed %d)", size, n, len(want),
				e.source, seed)
		}
	}
}
