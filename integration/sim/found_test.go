package sim

import (
	"fmt"
	"testing"
)

// found are the seeds of schedules that have found a fault, of the product or of the simulation.
// mutants has those of the product that a replacement can make again. A seed stands for a schedule
// of the faults that there are. Most were found when there were fewer.
var found = []struct {
	seed     uint64
	fault    string
	replicas bool // the schedule is one of those with two pods
}{
	{56, "a gateway that kept nothing lost translated connections in a restart", false},
	{97, "the same", false},
	{1082, "the same", false},
	{30070, "an SCTP packet that arrived broken left sound, where its port changed", false},
	{10310,
		"a first packet found no room in a full table: it asks four unanswered connections, and addresses of two links held them", false},
	{10316, "the same", false},
	{10458, "the same", false},
	{20190, "the same", false},
	{1715,
		"of the judge: a corrupted datagram reached a pod whose checksum was that of a partial one, which nobody can tell", false},
	{2242,
		"of the simulation: its Unix sockets kept descriptors that nobody would read, and with them the lock of a folder", false},
	{716, "of the simulation: an SCTP server sent answers that its path no longer carried", false},
	{54028,
		"of the judge: an IPv6 packet whose destination was corrupted went to another node, and the ledger had no place for it", false},
	{8395, "of the simulation: a sender of trains did not heed that its path had become narrow", false},
	{27984,
		"of the judge: who was told that a datagram was too large waited before it sent smaller ones, with two narrow legs in its way for longer than patience", false},
	{318169,
		"of the judge: a server's answer waited for a session, and its client's port had become another guest's after a restart", false},
	{292,
		"a guest's first packet found no room: a flood from its own network held more than one from another, which held the oldest", false},
	{302789, "of the simulation: a packet corrupted on two legs had the right checksum again", false},
	{29, "a gateway that had followed its peer to a pod's own address called that for three minutes", true},
	{10280, "no stream connected an active pod with one that was cut off from the API server, and went on", true},
	{101843, "the same", true},
	{200768, "a Lease that was deleted began again with a term that the pod with the Lease before it did not believe",
		true},
}

// TestFound: none of them is found again.
func TestFound(t *testing.T) {
	for _, f := range found {
		t.Run(fmt.Sprint(f.seed), func(t *testing.T) {
			s := random(f.seed, faultsEach)
			if f.replicas {
				s = withReplicas(f.seed, faultsEach)
			}
			r := play(t, s)
			if r.failure != "" {
				t.Logf("it has found: %s", f.fault)
				report(t, s, r)
				return
			}
			r.world.release()
		})
	}
}
