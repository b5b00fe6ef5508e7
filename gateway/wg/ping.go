package wg

import (
	"sync"
	"time"

	"culvert/geneve/udp"
)

// Pings is the result of recent echo requests to the peer's tunnel address.
type Pings struct {
	RTT            time.Duration // of the last one; 0 if none of the last few was answered
	Requests, Lost int           // the most recent ones, and how many had no answer
	Sent           uint64        // in all
	Missed         int           // since the last answer; 0 if there never was one
	AllMissed      uint64        // those of Sent that had no answer when the next one was sent
}

// pings counts echo requests to the peer's tunnel address and their answers.
type pings struct {
	mu sync.Mutex
	// of the last request
	number uint16 // +checklocks:mu
	// when it was sent
	sent time.Duration // +checklocks:mu
	rtt  time.Duration // +checklocks:mu
	// requests since the last answer
	missed int        // +checklocks:mu
	recent udp.Recent // +checklocks:mu
}

const (
	// Requests have one of this many sequence numbers, so that each answer can be assigned.
	pingSequences = 64
	// pingsMissed is how many unanswered requests make the last RTT obsolete.
	pingsMissed = 3
)

// Ping sends the peer an echo request. The goroutine that calls ProbeTrains calls it.
func (d *Device) Ping(now time.Duration) {
	d.probe.echo(pingSequence+d.pings.request(now), singleEcho)
}

// Pings returns the results.
func (d *Device) Pings() Pings {
	p := &d.pings
	p.mu.Lock()
	defer p.mu.Unlock()
	var found Pings
	found.Sent, found.AllMissed = p.recent.Totals()
	found.Lost, found.Requests = p.recent.Lost()
	if p.rtt != 0 {
		found.Missed = p.missed
	}
	if p.missed <= pingsMissed {
		found.RTT = p.rtt
	}
	return found
}

// reset forgets the results, for a new peer.
func (p *pings) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rtt, p.missed = 0, 0
	p.recent.Forget(0)
}

// request records a request and returns its number.
func (p *pings) request(now time.Duration) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number = (p.number + 1) % pingSequences
	p.sent = now
	p.missed++
	p.recent.Request()
	return p.number
}

// answer records the answer to a request.
func (p *pings) answer(number uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	followed := (p.number - number) % pingSequences
	p.recent.Answer(int(followed))
	if p.missed = 0; followed == 0 {
		p.rtt = now - p.sent
	}
}
