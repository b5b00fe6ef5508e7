package services

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/integration/need"
	"culvert/nat/nattest"
)

// A source is a device whose reads are the given functions in turn; the last one repeats.
type source []func(b []byte) (int, error)

func (d *source) Read(b []byte) (int, error) {
	next := (*d)[0]
	if len(*d) > 1 {
		*d = (*d)[1:]
	}
	return next(b)
}

// A device that is empty for a moment is polled; one that stays empty makes the reader sleep.
// Closing waits for the reader, so it leaves even a device that is never empty.
func TestPass(t *testing.T) {
	c, err := parse(t)
	need.NoError(t, err)
	w, d := newWay(t, c)
	s := &Server{engine: w.engine, began: time.Now()}
	syn := nattest.IP{Source: "10.244.2.9", Destination: "10.96.0.10", DF: true,
		Body: nattest.TCP{SourcePort: 4000, DestinationPort: 80, Flags: nattest.SYN, Window: 500}}.Bytes()
	packet := func(b []byte) (int, error) { return virtioLen + copy(b[virtioLen:], syn), nil }
	reads := 0
	fails := func(err error) func([]byte) (int, error) {
		return func([]byte) (int, error) { reads++; return 0, err }
	}
	empty, interrupted := fails(unix.EAGAIN), fails(unix.EINTR)
	buffer := make([]byte, headroom+packetRoom)

	if err := s.pass(w, &source{packet, empty, interrupted, empty, packet, empty}, buffer); err != unix.EAGAIN {
		t.Errorf("a device that is empty: %v", err)
	}
	if want := 3 + patience + 1; len(d.all) != 2 || reads != want {
		t.Errorf("%d packets are passed and %d reads in vain, want 2 and %d", len(d.all), reads, want)
	}
	if err := s.pass(w, &source{packet, fails(unix.EBADFD)}, buffer); err != unix.EBADFD || len(d.all) != 3 {
		t.Errorf("a device that was removed after a third packet: %v after %d", err, len(d.all))
	}
	closes := func(b []byte) (int, error) {
		if len(d.all) == 100 {
			s.closing.Store(true)
		}
		return packet(b)
	}
	if err := s.pass(w, &source{closes}, buffer); !errors.Is(err, errStopped) || len(d.all) != 101 {
		t.Errorf("a device that is closed while the 101st packet is read: %v after %d", err, len(d.all))
	}
}
