package health

import (
	"fmt"
	"time"
)

// Of the CPU. More comes than this gateway carries on what it may use.
var (
	BusyProcs = cause("cpu-procs", Warning, "Go code runs on {procs} of {cpus} CPUs and has used {share} % of that for {time}, while {what} ({rate} came)",
		"write cpus: {more}, reload, and compare")
	BusyQuota = cause("cpu-quota", Warning, "Go code has used {share} % of the control group's quota of {quota} CPUs for {time}, while {what} ({rate} came)",
		"raise the quota (the CPU limit of the container)")
	BusyMachine = cause("cpu-machine", Warning, "Go code runs on all {cpus} CPUs that it may use, and has used {share} % of that for {time}, while {what} ({rate} came)",
		"run the gateway on a machine with more CPUs, or find who sends so much (culvert connections)")
	BusyOver = cause("cpu-restored", Note, "there is CPU time to spare again after {time}", "")
)

// CPU is what this process has used of the machine, and may.
type CPU struct {
	Used  time.Duration // in total
	Procs int           // threads that run Go code at once; 0 = unknown
	CPUs  int           // on which they may run
	Quota float64       // CPUs that the control group may use on average; 0 = no limit
}

// limit is how much CPU time a second has.
func (c *CPU) limit() float64 {
	if c.Quota > 0 {
		return min(float64(c.Procs), c.Quota)
	}
	return float64(c.Procs)
}

const (
	// busyShare of the limit is all of it: beside a sender on the other of two CPUs a P that always had packets was seen to use 0.85.
	busyShare = 0.8
	// busyTime is for how long all of it must be used. A burst is shorter.
	busyTime = 10 * time.Second
	// calmTime is for how long it must not be used until that is over.
	calmTime = 5 * time.Second
)

// busy remembers for how long there has been no CPU time to spare.
type busy struct {
	last    time.Duration // the look before; before.Used is of it
	before  CPU
	sockets map[string]Socket // at the look before
	since   time.Duration     // the first look of those in a row that found all used
	used    time.Duration     // CPU time until then
	looks   int               // of them
	calm    time.Duration     // the last look that found all used
	lost    map[string]uint64 // datagrams that overflowed since then, by socket
	waits   map[string]int    // looks at which datagrams waited
	bytes   map[string]uint64 // that came meanwhile
	said    Finding           // what is the case, if it has a cause
}

func newBusy() busy {
	b := busy{sockets: make(map[string]Socket)}
	b.forget()
	return b
}

func (b *busy) forget() {
	b.looks, b.lost, b.waits, b.bytes = 0, make(map[string]uint64), make(map[string]int), make(map[string]uint64)
}

func (b *busy) judge(now time.Duration, o *Observation) (changes []Finding) {
	c := &o.CPU
	used, passed := c.Used-b.before.Used, now-b.last
	known := b.before.Procs == c.Procs && c.Procs > 0 && b.before.Quota == c.Quota && passed > 0
	b.last, b.before = now, *c
	if known && used.Seconds() >= busyShare*c.limit()*passed.Seconds() {
		if b.looks == 0 {
			b.since, b.used = now-passed, c.Used-used
		}
		b.looks, b.calm = b.looks+1, now
		b.count(o.Sockets)
		if socket := b.strained(); b.said.Cause == nil && now-b.since >= busyTime && socket != "" {
			b.said = b.finding(now, socket, o)
			changes = append(changes, b.said)
		}
	} else {
		if b.said.Cause != nil && now-b.calm >= calmTime {
			changes = append(changes, find(BusyOver, OfPeer, o.Peer.Name, "{time}", seconds(b.calm-b.since)))
			b.said = Finding{}
		}
		if b.said.Cause == nil {
			b.forget()
		}
	}
	for _, s := range o.Sockets {
		b.sockets[s.Name] = s
	}
	return changes
}

// count adds what came to the sockets since the last look.
func (b *busy) count(sockets []Socket) {
	for _, s := range sockets {
		before, known := b.sockets[s.Name]
		if !known {
			continue
		}
		b.lost[s.Name] += uint64(uint32(s.Overflows - before.Overflows))
		b.bytes[s.Name] += s.Bytes - min(before.Bytes, s.Bytes)
		if s.Waits {
			b.waits[s.Name]++
		}
	}
}

// strained returns the socket to which more comes than is taken: the one that has lost most, or, where a kernel does not tell, one at which
// datagrams waited at every look. "" is none.
func (b *busy) strained() (name string) {
	most := uint64(0)
	for socket, lost := range b.lost {
		if lost > most || lost == most && lost > 0 && socket < name {
			name, most = socket, lost
		}
	}
	for socket, looks := range b.waits {
		if most == 0 && looks == b.looks && (name == "" || socket < name) {
			name = socket
		}
	}
	return name
}

func (b *busy) finding(now time.Duration, socket string, o *Observation) Finding {
	c := &o.CPU
	cause := BusyMachine
	switch {
	case c.Quota > 0 && c.Quota < float64(min(c.Procs+1, c.CPUs)): // another P would have to share it
		cause = BusyQuota
	case c.Procs < c.CPUs:
		cause = BusyProcs
	}
	whom := "the peer"
	if socket == "geneve" {
		whom = "nodes"
	}
	what := fmt.Sprintf("%d datagrams from %s were lost", b.lost[socket], whom)
	if b.lost[socket] == 0 {
		what = "datagrams from " + whom + " waited all the time"
	}
	took := now - b.since
	return find(cause, OfPeer, o.Peer.Name, "{procs}", fmt.Sprint(c.Procs), "{cpus}", fmt.Sprint(c.CPUs), "{quota}", fmt.Sprintf("%.4g", c.Quota), "{time}", seconds(took),
		"{what}", what, "{share}", fmt.Sprintf("%.0f", 100*(c.Used-b.used).Seconds()/(c.limit()*took.Seconds())), "{rate}", fmt.Sprintf("%.3g Gb/s", float64(b.bytes[socket])*8/took.Seconds()/1e9), "{more}", fmt.Sprint(c.Procs+1))
}
