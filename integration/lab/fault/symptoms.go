package fault

import (
	"context"
	"fmt"
	"strings"
)

// Symptom is what users notice of a fault.
type Symptom struct {
	says, heading string // the heading is that of its section on the page of faults

	cut  func(from string, large bool) bool      // packets of these hosts and sizes do not pass; nil: all pass
	more func(ctx context.Context, l *Lab) error // checks what pings between pods do not show; nil: nothing
}

func (s *Symptom) String() string { return s.says }

// MarshalText is the text in JSON.
func (s *Symptom) MarshalText() ([]byte, error) { return []byte(s.says), nil }

// cuts reports whether packets from a host do not pass, large or small ones.
func (s *Symptom) cuts(from string, large bool) bool { return s.cut != nil && s.cut(from, large) }

// healthy is the symptom of a lab without faults.
var healthy = &Symptom{says: "everything passes"}

// symptoms are all symptoms of faults, in the order of the page of faults.
var symptoms = []*Symptom{AllCut, FirstCut, FirstDeaf, HalfCut, NewCut, PortCut, AllLarge, FirstLarge, SlowTCP,
	SlowBulk, Harmless, Unmeasured}

// All symptoms of faults.
var (
	AllCut = &Symptom{"no pod reaches the other cluster", "No pod reaches the other cluster",
		func(string, bool) bool { return true }, nil}
	FirstCut = &Symptom{"rome/pod1 and milan do not reach each other; rome/pod2 and milan do",
		"One node's pods, or some of them, do not reach the other cluster", ofFirst, nil}
	FirstDeaf = &Symptom{
		"rome/pod1 reaches milan, milan does not reach rome/pod1: only answers find the way to it",
		"The other cluster does not reach the pods of one node, but they reach it",
		func(from string, _ bool) bool { return from == "milan/pod1" }, nil}
	HalfCut = &Symptom{"some of rome/pod1's connections work, others cannot be opened; rome/pod2's all work",
		"Some connections of one node's pods work, others do not", ofFirst, halfPasses}
	NewCut = &Symptom{"pods reach each other; senders that need an entry in rome's table, such as rome/node1," +
		" do not reach milan", "Pods reach each other, and new connections of other senders fail", nil,
		func(ctx context.Context, l *Lab) error {
			if err := l.awaitDrop(ctx, "table-full", "connection-share"); err != nil {
				return err
			}
			return observe(ctx, l.Pair("rome/node1", "milan/pod1"), 84, false)
		}}
	PortCut = &Symptom{"pods reach each other; nobody behind rome's unknown source reaches UDP port 9 of milan/pod1",
		"Pods reach each other, and other senders do not reach one destination", nil,
		func(ctx context.Context, l *Lab) error { return l.awaitDrop(ctx, "port-exhausted", "port-share") }}
	AllLarge = &Symptom{"small packets pass, large ones vanish", "Small packets pass, large ones vanish",
		func(_ string, large bool) bool { return large }, nil}
	FirstLarge = &Symptom{"rome/pod1's small packets pass, its large ones vanish; rome/pod2's all pass",
		"Small packets of one node's pods pass, large ones vanish",
		func(from string, large bool) bool { return large && ofFirst(from, large) }, nil}
	SlowTCP = &Symptom{"everything passes, TCP in tiny segments", "TCP is slow", nil,
		func(ctx context.Context, l *Lab) error {
			near, err := l.Pair("rome/pod1", "milan/pod1").Stream(ctx, 1000, 1000)
			if err == nil && near.FirstMSS > 216 {
				err = fmt.Errorf("segments of %d bytes, want at most 216", near.FirstMSS)
			}
			return err
		}}
	SlowBulk = &Symptom{"everything passes, streams from rome more slowly", "Streams in one direction are slow",
		nil, nil}
	Harmless = &Symptom{"everything passes: the gateway learns the node from its packets",
		"All is well, and the status warns of a node", nil, nil}
	Unmeasured = &Symptom{"everything passes, and no gateway can ping the other",
		"All is well, and the status warns of the peer", nil, nil}
)

// ofFirst are the packets between the first pods.
func ofFirst(from string, _ bool) bool { return strings.HasSuffix(from, "/pod1") }
