package sim

import (
	"fmt"
	"testing"
)

// found are the seeds of schedules that have found a fault, of the product or of the simulation. mutants has those of the product that a
// replacement can make again. A seed stands for a schedule of the faults that there are. All but the
// last seven were found when there were fewer.
var found = []struct {
	seed  uint64
	fault string
}{
	{56, "a gateway that kept nothing lost translated connections in a restart"},
	{97, "the same"},
	{1082, "the same"},
	{30070, "an SCTP packet that arrived broken left sound, where its port changed"},
	{10310, "a first packet found no room in a full table: it asks four unanswered connections, and addresses of two links held them"},
	{10316, "the same"},
	{10458, "the same"},
	{20190, "the same"},
	{1715, "of the judge: a corrupted datagram reached a pod whose checksum was that of a partial one, which nobody can tell"},
	{2242, "of the simulation: its Unix sockets kept descriptors that nobody would read, and with them the lock of a folder"},
	{716, "of the simulation: an SCTP server sent answers that its path no longer carried"},
	{54028, "of the judge: an IPv6 packet whose destination was corrupted went to another node, and the ledger had no place for it"},
	{8395, "of the simulation: a sender of trains did not heed that its path had become narrow"},
	{27984, "of the judge: who was told that a datagram was too large waited before it sent smaller ones, with two narrow legs in its way for longer than patience"},
	{318169, "of the judge: a server's answer waited for a session, and its client's port had become another guest's after a restart"},
	{292, "a guest's first packet found no room: a flood from its own network held more than one from another, which held the oldest"},
	{302789, "of the simulation: a packet corrupted on two legs had the right checksum again"},
}

// TestFound: none of them is found again.
func TestFound(t *testing.T) {
	for _, f := range found {
		t.Run(fmt.Sprint(f.seed), func(t *testing.T) {
			s := random(f.seed, faultsEach)
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
