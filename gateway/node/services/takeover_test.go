package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/gateway/handover"
	"culvert/gateway/node/services/steer"
	"culvert/gateway/state"
	"culvert/integration/need"
)

// connectAlways opens connections, one after another, until the test calls stop. None may fail, or
// need a second SYN.
func (n *node) connectAlways() (stop func()) {
	ctx, cancel := context.WithCancel(n.Context())
	var done sync.WaitGroup
	for _, to := range everywhere {
		done.Go(func() {
			for ctx.Err() == nil {
				if err := connectOnce(to); err != nil {
					n.Errorf("%s: %v", to, err)
				}
			}
		})
	}
	return func() { cancel(); done.Wait() }
}

func connectOnce(to string) error {
	s, err := dial("tcp", to)
	if err != nil {
		return err
	}
	defer s.Close()
	raw, err := s.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Control(func(fd uintptr) {
		if info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); e != nil ||
			info.Total_retrans > 0 {
			err = fmt.Errorf("segments were repeated: %v", e)
		}
	})
	return err
}

// takeoverFile adds to serverFile a state folder, a page and an announced address.
func takeoverFile(folder string) []string {
	return []string{"addresses:",
		"state: " + folder + "\nmetrics: 127.0.0.1:8083\nannounce: [203.0.113.7/32]\naddresses:",
		"nodePort: 30010, ", "nodePort: 30010, loadBalancerIPs: [203.0.113.7], "}
}

// Processes that ask for a hand-over and cannot serve, or end in the middle of it, cost nothing.
// The next one continues with the connections, devices and listeners; nobody notices.
func TestServerTakenOver(t *testing.T) {
	n := newNode(t)
	before := n.kernelState()
	folder := t.TempDir()
	file := takeoverFile(folder)
	first := n.start(n.config(file...))
	firstLogs := n.logs
	tcp, announced := n.dial("tcp", "172.18.0.2:30010"), n.dial("tcp", "203.0.113.7:80")
	alive := func(when string) {
		t.Helper()
		n.requireAnswer(when, tcp, "still")
		n.requireAnswer(when, announced, "still")
	}
	vip, err := netlink.LinkByName(steer.VIPPrefix + "0")
	need.NoError(t, err)
	serving := n.kernelState()
	stop := n.connectAlways()
	taking := func(change func(*Config)) *Config {
		c := n.config(file...)
		c.TakeOver = true
		change(c)
		return c
	}
	for want, change := range map[string]func(*Config){
		"of node n1, and this one of n7":                       func(c *Config) { c.Node = "n7" },
		"services.interface: culvert1 is held by exe, process": func(c *Config) { c.State, c.Metrics = "", "" },
		"services.metrics: listen tcp 192.0.2.1:8083":          func(c *Config) { c.Metrics = "192.0.2.1:8083" },
	} {
		if s, err := n.open(taking(change)); s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		alive(want)
	}
	n.endsInMiddle(folder, firstLogs, alive)

	var s *Server
	retryWithoutTime(t, "the hand-over", func() (err error) {
		s, err = n.open(taking(func(*Config) {}))
		return err
	})
	next := n.run(s)
	handed := new(HandedOver)
	if err := <-first.ended; !errors.As(err, &handed) || handed.Process != os.Getpid() {
		t.Errorf("the first ends with %v, process %d", err, handed.Process)
	}
	first.ended <- nil
	alive("after the hand-over")
	stop()
	n.requireState("after the hand-over", serving)
	if after, err := netlink.LinkByName(steer.VIPPrefix + "0"); err != nil || after.Attrs().Index != vip.Attrs().Index {
		t.Errorf("the VIP device was %v, and is %v: %v", vip, after, err)
	}
	if restored := s.Status().Table.Restored; restored < 2 {
		t.Errorf("the next goes on with %d connections", restored)
	}
	next.stop()
	need.OwnTUN(t, DefaultInterface)

	// The device stays, and the next run goes on with what this one has left.
	last := n.start(n.config(file...))
	alive("after a restart")
	n.requireState("after a restart", serving)
	last.stop()
	tcp.Close()
	announced.Close()
	n.start(n.config()).stop() // keeps nothing
	n.requireState("left behind", before)
}

// endsInMiddle ends new processes after each kind of message. The first one says so and goes on.
func (n *node) endsInMiddle(folder string, logs *test.Hook, alive func(when string)) {
	n.Helper()
	said := func() (times int) {
		for _, e := range logs.AllEntries() {
			if strings.HasPrefix(e.Message, "hand-over failed: this process goes on") {
				times++
			}
		}
		return times
	}
	need.Eventually(n, patient, "words for the hand-overs to n7 and at 192.0.2.1", func() error {
		if times := said(); times != 2 {
			return fmt.Errorf("said %d times", times)
		}
		return nil
	})
	attempts := 0
	for _, last := range []handover.Kind{handover.KindOffer, handover.KindStanding, handover.KindCut} {
		retryWithoutTime(n.T, fmt.Sprintf("a hand-over to message %d", last), func() error {
			conn, err := net.Dial("unix", takeoverPath(state.Path(folder, DefaultInterface)))
			need.NoError(n, err)
			attempts++
			return endAfter(handover.NewLine(conn.(*net.UnixConn)), last)
		})
		need.Eventually(n, patient, "words for the hand-over", func() error {
			if times := said(); times != 2+attempts {
				return fmt.Errorf("said %d times", times)
			}
			return nil
		})
		alive(fmt.Sprintf("after message %d", last))
	}
}

// retryWithoutTime repeats a hand-over that failed because the machine gave this process no time
// for longer than a hand-over may last. The process that serves goes on then.
func retryWithoutTime(t *testing.T, what string, handOver func() error) {
	t.Helper()
	need.Eventually(t, patient, what, func() error {
		err := handOver()
		parks := errors.Is(err, handover.ErrRefused) && strings.Contains(err.Error(), "packets are still moved after")
		if cut := errors.Is(err, unix.EPIPE); err != nil && !parks && !cut {
			t.Fatalf("%s: %v", what, err)
		}
		return err
	})
}

// endAfter acts as a new process that ends after it has read a message.
func endAfter(line *handover.Line, last handover.Kind) error {
	defer line.Close()
	for kind := handover.Kind(0); kind != last; {
		var files []*os.File
		var err error
		if kind, _, files, err = line.Receive(patient); err != nil {
			return err
		}
		for _, f := range files {
			f.Close()
		}
		if kind == handover.KindStanding && last != kind {
			if err := line.Send(handover.KindReady, nil, patient); err != nil {
				return err
			}
		}
	}
	return nil
}
