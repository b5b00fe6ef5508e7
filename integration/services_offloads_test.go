package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"culvert/gateway/node"
	"culvert/integration/need"
)

// TestServicesOffloads: senders leave segmentation and checksums of streams and trains to network
// cards, and the kernel does that work behind culvert node, from what culvert node tells it. The
// links to the receivers do none of it, so that receivers verify each checksum. Over both families,
// with and without masquerading.
func TestServicesOffloads(t *testing.T) {
	beside(t, func(t *testing.T) {
		l := newServiceLab(t)
		l.start(served("web", "tcp", 10, "", "pb"), served("dns", "udp", 10, "", "pb"))
		for host, links := range map[*peerHost][]string{l.n1: {"lan", "pc"}, l.n2: {"lan", "pb"}} {
			for _, link := range links {
				err := host.do(func() error {
					return node.SetFeatures(link, false, "tx-checksum-ip-generic", "tx-tcp-segmentation",
						"tx-tcp6-segmentation", node.FeatureUDPSegmentation)
				})
				need.NoError(t, err)
			}
		}
		for _, to := range []string{"10.96.0.10:80", "[fd96::10]:80", "172.18.0.2:30010", "[fd18::2]:30010"} {
			if err := l.c.do(func() error { return errors.Join(echoes(to), answersTrain(to)) }); err != nil {
				t.Errorf("%s: %v", to, err)
			}
		}
	}, programs("ip", "ip"))
}

// echoes sends a stream and checks that it comes back.
func echoes(to string) error {
	conn, err := net.DialTimeout("tcp", to, askPatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	sent, err := io.ReadAll(io.LimitReader(randomBytes(3), 4<<20))
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	if err = errors.Join(err, <-failed); err == nil && !bytes.HasSuffix(got, sent) {
		err = fmt.Errorf("%d bytes come back, not the %d that were sent", len(got), len(sent))
	}
	return err
}

// answersTrain sends a train of datagrams and checks that each is answered.
func answersTrain(to string) error {
	const size, datagrams = 1000, 20
	conn, err := net.DialTimeout("udp", to, askPatience)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(askPatience))
	if _, _, err := conn.(*net.UDPConn).WriteMsgUDP(make([]byte, size*datagrams), segmentOption(size),
		nil); err != nil {
		return err
	}
	for i := range datagrams {
		if _, err := conn.Read(make([]byte, 100)); err != nil {
			return fmt.Errorf("datagram %d of a train: %w", i, err)
		}
	}
	return nil
}
