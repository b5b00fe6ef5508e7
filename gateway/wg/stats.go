package wg

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"culvert/gateway/latency"
	"culvert/geneve/udp"
)

// PeerStats is what the device knows about the peer.
type PeerStats struct {
	Endpoint       string
	Unresolved     string    // why the configured endpoint has no address; "" = it has one
	LastHandshake  time.Time // zero: none
	Received, Sent uint64    // bytes of transport messages
}

// PeerStats returns what the device knows about the peer. It fails only when the device is closed.
func (d *Device) PeerStats() (PeerStats, error) {
	var s PeerStats
	text, err := d.device.IpcGet()
	if err != nil {
		return s, fmt.Errorf("wg: %w", err)
	}
	var sec, nsec int64
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "endpoint":
			s.Endpoint = value
		case "last_handshake_time_sec":
			sec = n
		case "last_handshake_time_nsec":
			nsec = n
		case "rx_bytes":
			s.Received = uint64(n)
		case "tx_bytes":
			s.Sent = uint64(n)
		}
	}
	if err := d.unresolved.Load(); err != nil {
		s.Unresolved = (*err).Error()
	}
	if sec != 0 || nsec != 0 {
		s.LastHandshake = time.Unix(sec, nsec)
	}
	return s, nil
}

// Stats are the counters of a Device.
type Stats struct {
	Outbound, Inbound [NumReasons]uint64 // packets dropped, to and from the peer
	Trains            bool               // sent to the peer
	LostTrains        uint64             // how often trains to the peer were found lost
	Talk              Talk               // handshakes
	ReceivePauses     uint64             // of a receiver, after an error from the kernel
	Sockets           []udp.Stats        // IPv4 first

	// How long sampled batches took in wireguard-go, in each direction, and to be sent to the peer.
	Encrypt, Decrypt, Send latency.Counts
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	s := Stats{
		Inbound:       d.bind.admission.dropped(),
		Talk:          d.bind.admission.handshakes.totals(),
		Trains:        d.bind.offload() && !d.probe.Lost(),
		LostTrains:    d.probe.losses.Load(),
		ReceivePauses: d.bind.receiveStops.Load(),
		Sockets:       d.bind.stats(),
		Encrypt:       d.bind.passed.encrypt.Counts(),
		Decrypt:       d.bind.passed.decrypt.Counts(),
		Send:          d.bind.passed.send.Counts(),
	}
	s.Outbound[TunnelDiscard] = uint64(d.bind.out.gone.Load())
	s.Inbound[TunnelDiscard] = uint64(d.bind.in.gone.Load())
	return s
}

// A Turnover counts the packets of one direction that wireguard-go was given, without those given
// up that may still come back, and those that it gave back.
type Turnover struct{ Given, Returned uint64 }

// Turnover returns what wireguard-go was given to encrypt and to decrypt.
func (d *Device) Turnover() (encrypted, decrypted Turnover) {
	return d.bind.out.turnover(), d.bind.in.turnover()
}

// Settle must be called once a second: it counts what wireguard-go has dropped.
func (d *Device) Settle() {
	d.bind.out.countLost()
	d.bind.in.countLost()
}
