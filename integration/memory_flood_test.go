package integration

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"

	"culvert/geneve"
	"culvert/integration/need"
)

// A flood is one kind of unwanted traffic.
type flood struct {
	name  string
	from  *peerHost
	local string // address to send from; "" = any
	to    string // address and port
	size  int    // bytes of each datagram
	train bool   // in trains, which nodes make of super-frames
	rate  int    // datagrams a second; 0 = bursts as fast as possible
	fill  func(datagram []byte)

	sent int // datagrams, once run has returned
}

const (
	floodBatch = 40 // datagrams of one system call
	floodLag   = 5 * time.Millisecond
	// Each burst fills the gateway's sockets, so that other traffic is lost; in the pauses it must
	// get through again.
	floodPeriod = 200 * time.Millisecond
	floodBurst  = 120 * time.Millisecond
)

// A pace spaces batches evenly. A delayed sender catches up by floodLag at most, because more would
// fill buffers.
type pace struct {
	due   time.Time
	every time.Duration
}

// newPace returns the pace of rate datagrams a second.
func newPace(began time.Time, rate int) *pace {
	return &pace{began, floodBatch * time.Second / time.Duration(rate)}
}

// wait waits until the next batch is due.
func (p *pace) wait() {
	if late := time.Since(p.due); late > floodLag {
		p.due = p.due.Add(late - floodLag)
	} else {
		time.Sleep(-late) // not synchronisation: this is the pace
	}
	p.due = p.due.Add(p.every)
}

// run sends bursts until the given time.
func (f *flood) run(began, end time.Time) error {
	var conn net.Conn
	err := f.from.do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(f.local)}}
		conn, err = dialer.Dial("udp4", f.to)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	socket := ipv4.NewPacketConn(conn.(*net.UDPConn))
	payload := make([]byte, floodBatch*f.size)
	messages, each := make([]ipv4.Message, floodBatch), 1
	for i := range messages {
		messages[i].Buffers = [][]byte{payload[i*f.size : (i+1)*f.size]}
	}
	if f.train {
		messages, each = []ipv4.Message{{Buffers: [][]byte{payload}, OOB: segmentOption(f.size)}}, floodBatch
	}
	pace := newPace(began, max(f.rate, 1))
	for now := began; now.Before(end); now = time.Now() {
		if f.rate > 0 {
			pace.wait()
		} else if rest := floodBurst - now.Sub(began)%floodPeriod; rest <= 0 {
			time.Sleep(floodPeriod - floodBurst + rest) // not synchronisation: this is the pause between bursts
			continue
		}
		for i := range floodBatch {
			f.fill(payload[i*f.size : (i+1)*f.size])
		}
		n, err := socket.WriteBatch(messages, 0)
		// The far pod answers "port unreachable", or its gateway is too busy.
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EHOSTUNREACH) &&
			!errors.Is(err, syscall.ENOBUFS) {
			return fmt.Errorf("flood of %s: %w", f.name, err)
		}
		f.sent += max(n, 0) * each
	}
	return nil
}

// segmentOption is the control message that sends one payload as a train.
func segmentOption(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	header.Level, header.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	header.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}

// garbage fills datagrams with a prefix and random bytes.
func garbage(prefix ...byte) func([]byte) {
	random := rand.NewChaCha8([32]byte{byte(len(prefix))})
	return func(b []byte) {
		random.Read(b[copy(b, prefix):])
	}
}

// message fills datagrams with WireGuard messages of a type; the rest is as in garbage.
func message(kind uint32, rest ...byte) func([]byte) {
	return garbage(append(binary.LittleEndian.AppendUint32(nil, kind), rest...)...)
}

// initiations fills datagrams with handshake initiations of strangers who know the receiver's
// public key.
func initiations(t *testing.T, public string) func([]byte) {
	key, err := base64.StdEncoding.DecodeString(public)
	need.NoError(t, err)
	var macs device.CookieGenerator
	macs.Init(device.NoisePublicKey(key))
	fill := message(device.MessageInitiationType)
	return func(b []byte) {
		fill(b)
		macs.AddMacs(b)
	}
}

// vxlanFrames fills datagrams with a node's frames, which carry random IPv4 packets of a protocol,
// from source to destination.
func vxlanFrames(vni geneve.VNI, node net.HardwareAddr, protocol byte, source,
	destination func() [4]byte) func([]byte) {
	header := append([]byte{0x08, 0, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(vni)<<8)...)
	gateway := geneve.MAC(vni, geneve.Gateway)
	header = append(append(append(header, gateway[:]...), node...), 0x08, 0x00)
	fill := garbage(header...)
	return func(b []byte) {
		fill(b)
		ip := b[len(header):]
		from, to := source(), destination()
		copy(ip, []byte{0x45, 0, byte(len(ip) >> 8), byte(len(ip)), 0, 0, 0x40, 0, 64, protocol, 0, 0})
		copy(ip[12:], from[:])
		copy(ip[16:], to[:])
		binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip[:20]))
		switch body := ip[20:]; protocol {
		case unix.IPPROTO_UDP: // from and to random ports, without a checksum
			copy(body[4:], []byte{byte(len(body) >> 8), byte(len(body)), 0, 0})
		case unix.IPPROTO_ICMP:
			copy(body, []byte{8, 0, 0, 0}) // echo request
			binary.BigEndian.PutUint16(body[2:], internetChecksum(body))
		}
	}
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// always returns one address each time; within goes through those of a /16.
func always(a, b, c, d byte) func() [4]byte { return func() [4]byte { return [4]byte{a, b, c, d} } }

func within(a, b byte) func() [4]byte {
	n := uint16(0)
	return func() [4]byte {
		n++
		return [4]byte{a, b, byte(n >> 8), byte(n)}
	}
}

// nodeMAC returns the MAC address of the node's tunnel link.
func nodeMAC(node *peerHost) net.HardwareAddr {
	fields := strings.Fields(node.run("ip", "-br", "link", "show", "dev", "tunnel"))
	mac, err := net.ParseMAC(fields[2])
	if err != nil {
		node.t.Fatal(err)
	}
	return mac
}

// overhearSession waits for a data message from the peer to the gateway in h, and returns its
// destination and the receiver index of the session.
func overhearSession(h *peerHost, peer string) (to string, index []byte) {
	h.t.Helper()
	fd := -1
	err := h.do(func() (err error) {
		const allIPv4 = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // in network byte order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, allIPv4)
		return err
	})
	need.NoError(h.t, err)
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(startTimeout.Nanoseconds())
	need.NoError(h.t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	const ipLen, udpLen = 20, 8
	for packet := make([]byte, 1<<16); ; {
		n, err := unix.Read(fd, packet)
		if err != nil {
			h.t.Fatalf("no data message of the peer: %v", err)
		}
		if n < ipLen+udpLen+device.MessageTransportSize || packet[9] != unix.IPPROTO_UDP ||
			net.IP(packet[12:16]).String() != peer {
			continue
		}
		if m := packet[ipLen+udpLen:]; m[0] == device.MessageTransportType {
			port := binary.BigEndian.Uint16(packet[ipLen+2:])
			return fmt.Sprintf("%s:%d", net.IP(packet[16:20]), port), append([]byte(nil), m[4:8]...)
		}
	}
}
