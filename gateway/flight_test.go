package gateway

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"culvert/gateway/control"
	"culvert/gateway/seats"
)

// TestFlight: a client that waits for a slow batch gets a trace of that batch and its duration;
// nothing is recorded before or after.
func TestFlight(t *testing.T) {
	p, client := newControlled(t, nil)
	records := func() bool {
		return !strings.Contains(string(p.rome.inspect.Metrics(seats.New(nil), 0)), "\nculvert_flight_recorder_bytes 0\n")
	}
	if records() {
		t.Error("recorded before anybody asks")
	}
	type answer struct {
		took time.Duration
		err  error
	}
	var trace bytes.Buffer
	done := make(chan answer, 1)
	await := func(ctx context.Context, over time.Duration) {
		begun := make(chan struct{})
		go func() {
			took, err := client.Flight(ctx, over, &trace, func() { close(begun) })
			done <- answer{took, err}
		}()
		select {
		case <-begun:
		case a := <-done:
			t.Fatal(a.err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	await(ctx, time.Hour)
	if !records() {
		t.Error("not recorded while somebody waits")
	}
	if _, err := client.Flight(t.Context(), 0, &trace, func() {}); err == nil || !strings.HasPrefix(err.Error(), "somebody else waits for a slow batch already") {
		t.Errorf("two wait: %v", err)
	}
	cancel()
	if a := <-done; a.err == nil || trace.Len() > 0 {
		t.Errorf("given up: %v, %d bytes", a.err, trace.Len())
	}
	waitFor(t, "the gateway notices that nobody waits", func() bool { return !records() })
	await(t.Context(), 0)
	var a answer
	for a == (answer{}) {
		p.rome.nodes[0].Send(udpPacket("10.0.1.5", "10.61.1.7", nil))
		p.milan.nodes[0].Receive() // send no faster than packets are carried; an answer may take seconds
		select {
		case a = <-done:
		default:
		}
	}
	if a.err != nil || a.took <= 0 || !bytes.HasPrefix(trace.Bytes(), []byte("go 1.")) || !bytes.Contains(trace.Bytes(), []byte("a batch has taken "+a.took.String())) {
		t.Errorf("%v, %v, %d bytes", a.took, a.err, trace.Len())
	}
	if records() {
		t.Error("recorded after the end")
	}
	if err := client.Get(t.Context(), "GET", "/debug/flight", nil, new(control.Status)); err == nil || err.Error() != `over: "" is no duration such as 5ms` {
		t.Errorf("without a bound: %v", err)
	}
}
