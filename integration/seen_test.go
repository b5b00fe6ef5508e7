package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/gateway/control"
	"culvert/integration/need"
)

// newSeen makes two clusters, and a client of the control socket of rome's gateway, which has room
// for four million connections.
func newSeen(t *testing.T) (*clusters, *control.Client) {
	t.Helper()
	dir := t.TempDir()
	need.NoError(t, os.Chown(dir, unprivilegedUID, unprivilegedUID))
	need.NoError(t, os.Chmod(filepath.Dir(dir), 0o711))
	path := filepath.Join(dir, "rome.sock")
	c := newVXLANClusters(t)
	c.romeCulvert.stop()
	c.romeCulvert = startGateway(c.romeGateway, strings.Replace(romeConfig, `control: ""`,
		"control: "+path+"\nnat: {maxConnections: 4000000}", 1),
		c.romeKey, c.milanKey.public)
	pingThrough(c.romePod, milanPodAtRome)
	return c, control.NewClient(path)
}

const (
	statusTime = 50 * time.Millisecond // limit for a status
	beatTime   = time.Millisecond      // limit for how long a listing may delay a packet
	beatPause  = 300 * time.Microsecond
	beatPort   = 9
	listings   = 4 // and as many rounds without one; connections without an answer last two minutes
)

// TestMillionConnections: with a million connections, a status comes at once, and packets pass
// while all connections are listed.
func TestMillionConnections(t *testing.T) {
	need.Long(t, "a measurement of two minutes, which needs a quiet machine")
	isolated(t, func(t *testing.T) {
		const want = 1_000_000
		c, client := newSeen(t)
		c.fillTable(t, client, want)
		c.milanPod.answerBeats()
		// With precedence over other processes, times depend on the gateway alone.
		c.romeCulvert.comesFirst(t)
		c.milanCulvert.comesFirst(t)

		var took []time.Duration
		for range 21 {
			began := time.Now()
			c.romeGateway.run(os.Getenv(binaryEnv), "status", "--socket", client.Path)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("culvert status: %v, %v to %v", took[10], took[0], took[20])
		if took[10] > statusTime {
			t.Errorf("a status takes %v, want %v", took[10], statusTime)
		}

		// Other processes delay answers too, with or without a listing. The best of many rounds of
		// each kind, equally long, show the effect of a listing.
		var listed, quiet []time.Duration
		for range listings {
			lines, began := 0, time.Now()
			beats := c.beats(t, func() { lines = list(t, client) })
			took := time.Since(began)
			t.Logf("%d connections in %.1f s: %v", lines, took.Seconds(), beats)
			if lines < want {
				t.Errorf("%d connections are listed, want %d", lines, want)
			}
			listed = append(listed, beats.at(1))
			beats = c.beats(t, func() { <-time.After(took) })
			t.Logf("without a listing: %v", beats)
			quiet = append(quiet, beats.at(1))
		}
		held := slices.Min(listed) - slices.Min(quiet)
		t.Logf("in the best listing no answer is later than %v, in the best turn without one %v", slices.Min(listed),
			slices.Min(quiet))
		if held > beatTime {
			t.Errorf("a listing holds a packet up for %v, want %v", held, beatTime)
		}
	}, programs("ping", "ping"))
}

// fillTable sends datagrams from a pod of rome, from and to as many ports as needed. The far kernel
// drops them for their checksum.
func (c *clusters) fillTable(t *testing.T, client *control.Client, connections int) {
	t.Helper()
	fill := vxlanFrames(romeVNI, nodeMAC(c.romeNode), unix.IPPROTO_UDP, always(10, 0, 1, 7), always(10, 61, 1, 5))
	began := time.Now()
	f := &flood{name: "new connections", from: c.romeNode, to: "172.18.0.9:6091", size: 90, rate: 100_000,
		fill: func(b []byte) {
			fill(b)
			binary.BigEndian.PutUint16(b[vxlanLen+20+6:], 0xbaad)
		}}
	for have := 0; have < connections; {
		f.sent = 0
		need.NoError(t, f.run(time.Now(), time.Now().Add(time.Second)))
		s, err := client.Status(t.Context())
		need.NoError(t, err)
		if have = s.Table.Connections; time.Since(began) > time.Minute {
			t.Fatalf("%d connections in %v", have, time.Since(began))
		}
	}
	t.Logf("the table is full after %v", time.Since(began).Round(time.Second))
}

// list reads all connections, and counts them.
func list(t *testing.T, client *control.Client) (lines int) {
	t.Helper()
	response, err := client.Open(t.Context(), http.MethodGet, "/v1/connections", nil, nil)
	need.NoError(t, err)
	defer response.Body.Close()
	for buffer := make([]byte, 1<<17); ; {
		n, err := response.Body.Read(buffer)
		lines += bytes.Count(buffer[:n], []byte("\n"))
		if err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// comeFirst gives a thread, and those that it will start, precedence over all threads that are not
// real-time; 0 is this thread.
func comeFirst(thread int) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
}

// comesFirst does the same for a process.
func (p *peerProcess) comesFirst(t *testing.T) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.cmd.Process.Pid))
	for _, path := range threads {
		id, _ := strconv.Atoi(filepath.Base(path))
		err = errors.Join(err, comeFirst(id))
	}
	if err != nil || len(threads) == 0 {
		t.Fatalf("%d threads: %v", len(threads), err)
	}
}

// datagrams opens a blocking UDP socket inside the host.
func (h *peerHost) datagrams() (fd int) {
	h.t.Helper()
	err := h.do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	need.NoError(h.t, err)
	return fd
}

// answerBeats answers each datagram at beatPort with an empty one until the end of the test.
func (h *peerHost) answerBeats() {
	h.t.Helper()
	fd := h.datagrams()
	need.NoError(h.t, unix.Bind(fd, &unix.SockaddrInet4{Port: beatPort}))
	answered := make(chan struct{})
	h.t.Cleanup(func() {
		unix.Shutdown(fd, unix.SHUT_RDWR)
		<-answered
		unix.Close(fd)
	})
	go onPeerThread(func() error {
		defer close(answered)
		if err := comeFirst(0); err != nil {
			return err
		}
		for {
			_, from, err := unix.Recvfrom(fd, make([]byte, 16), 0)
			if err == nil && from == nil { // shut down
				return nil
			}
			if err == nil {
				err = unix.Sendto(fd, nil, 0, from)
			}
			if err != nil && err != unix.EINTR {
				return err
			}
		}
	})
}

// beats sends requests from a pod to a pod of the other cluster, one after another, until during
// returns. It returns the times of the answers, the quickest first.
func (c *clusters) beats(t *testing.T, during func()) (took pulses) {
	t.Helper()
	limit := unix.NsecToTimeval(startTimeout.Nanoseconds())
	fd := c.romePod.datagrams()
	defer unix.Close(fd)
	err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 61, 1, 5}, Port: beatPort}))
	need.NoError(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		during()
	}()
	err = onPeerThread(func() error {
		if err := comeFirst(0); err != nil {
			return err
		}
		answer := make([]byte, 16)
		for {
			select {
			case <-over:
				return nil
			default:
			}
			began := time.Now()
			if _, err := unix.Write(fd, nil); err != nil {
				return err
			}
			_, err := unix.Read(fd, answer)
			for err == unix.EINTR {
				_, err = unix.Read(fd, answer)
			}
			if err != nil {
				return fmt.Errorf("no answer: %w", err)
			}
			took = append(took, time.Since(began))
			time.Sleep(beatPause) // the pace of the beat
		}
	})
	need.NoError(t, err)
	slices.Sort(took)
	return took
}

// pulses are times of answers, the quickest first.
type pulses []time.Duration

func (p pulses) at(share float64) time.Duration { return p[int(share*float64(len(p)-1))] }

func (p pulses) String() string {
	return fmt.Sprintf("%d answers after %v, of 1000 one later than %v, one at %v", len(p), p.at(0.5),
		p.at(0.999), p.at(1))
}
