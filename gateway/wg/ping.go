package wg

import (
	"sync"
	"time"

	"culvert/geneve/udp"
)

// Pings is what echo requests to the peer's tunnel address have found of late.
type Pings struct {
	RTT            time.Duration // of the last one; 0 where none of the last few was answered
	Requests, Lost int           // the last ones, and how many of them had no answer
	Sent           uint64        // all of them
	Missed         int           // since the last answer; 0 where there never was one
	AllMissed      uint64        // of Sent, those that had no answer when the next one was sent
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
	// Requests have one of so many sequence numbers, so that each answer is known for its own.
	pingSequences = 64
	// pingsMissed is how many requests may go without answer before the last RTT tells nothing.
	pingsMissed = 3
)

// Ping sends the peer an echo request. It is called by the goroutine that calls ProbeTrains.
func (d *Device) Ping(now time.Duration) {
	d.probe.echo(pingSequence+d.pings.request(now), singleEcho)
}

// Pings returns what pings have found.
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

// reset forgets what was found of another peer.
func (p *pings) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rtt, p.missed = 0, 0
	p.recent.Forget(0)
}

// request notes a request and returns its number.
func (p *pings) request(now time.Duration) uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number = (p.number + 1) % pingSequences
	p.sent = now
	p.missed++
	p.recent.Request()
	return p.number
}

// answer notes the answer to a request.
func (p *pings) answer(number uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	followed := (p.number - number) % pingSequences
	p.recent.Answer(int(followed))
	if p.missed = 0; followed == 0 {
		p.rtt = now - p.sent
	}
}
