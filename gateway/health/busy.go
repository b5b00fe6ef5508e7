package health

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// About the CPU: more packets come than the process can handle with the CPU time that it may use.
var (
	BusyProcs = cause("cpu-procs", Warning,
		"Go code runs on {procs} of {cpus} CPUs and has used {share} % of that for {time}, while {what} ({rate} came)",
		"write cpus: {more}, reload, and compare")
	BusyQuota = cause("cpu-quota", Warning,
		"Go code has used {share} % of the control group's quota of {quota} CPUs for {time}, while {what} ({rate} came)",
		"raise the quota (the CPU limit of the container)")
	BusyMachine = cause("cpu-machine", Warning,
		"Go code runs on all {cpus} CPUs that it may use, and has used {share} % of that for {time}, while {what} ({rate} came)",
		"find who sends so much, or use a machine with more CPUs")
	BusyOver = cause("cpu-restored", Note, "there is CPU time to spare again after {time}", "")
)

// CPU is the CPU time that this process has used, and what it may use.
type CPU struct {
	Used  time.Duration // in total
	Procs int           // threads that run Go code at once; 0 = unknown
	CPUs  int           // CPUs on which they may run
	Quota float64       // CPUs that the control group may use on average; 0 = no limit
}

// limit returns the CPU time available per second, in seconds.
func (c *CPU) limit() float64 {
	if c.Quota > 0 {
		return min(float64(c.Procs), c.Quota)
	}
	return float64(c.Procs)
}

const (
	// busyShare of the limit counts as all of it: a P that always had packets, beside a sender on
	// the other of two CPUs, was measured to use 0.85.
	busyShare = 0.8
	// busyTime is how long all of it must be used. A burst is shorter.
	busyTime = 10 * time.Second
	// calmTime is how long less must be used before the finding ends.
	calmTime = 5 * time.Second
)

// A Load judges the CPU time of one process against the packets that come to it. The zero Load is
// ready.
type Load struct {
	last    time.Duration // when Look last ran, with before
	before  CPU
	sockets map[string]Socket // at the last Look
	full    []second          // the latest consecutive looks that found all used, back to busyTime
	since   time.Duration     // when the problem in said began
	calm    time.Duration     // the last look that found all used
	said    Finding           // the current problem; its Cause is nil if there is none
}

// A second is the time between two looks.
type second struct {
	began   time.Duration
	used    time.Duration // CPU time
	intakes []intake
}

// An intake is what came to a socket.
type intake struct {
	socket, from string
	lost, bytes  uint64
	counted      time.Duration // duration in which these came
	losses       int           // seconds with overflows
	waits        int           // seconds after which datagrams waited
}

// Finding returns the current problem; its Cause is nil if there is CPU time to spare.
func (b *Load) Finding() Finding { return b.said }

// Look is called once a second with the CPU time that the process has used. If that is much, it
// calls read for the counters of the sockets. It returns the changes, as findings about the subject
// named of, of that kind.
func (b *Load) Look(now time.Duration, c *CPU, read func() []Socket, kind Kind, of string) (changes []Finding) {
	used, passed := c.Used-b.before.Used, now-b.last
	known := b.before.Procs == c.Procs && c.Procs > 0 && b.before.Quota == c.Quota && passed > 0
	var share float64
	if known {
		share = used.Seconds() / (c.limit() * passed.Seconds())
	}
	var sockets []Socket
	if share >= busyShare/2 {
		sockets = read()
	}
	if share >= busyShare {
		b.calm = now
		b.full = append(b.full, second{b.last, used, b.intakes(sockets, passed)})
		for len(b.full) > 1 && now-b.full[1].began >= busyTime {
			b.full = b.full[1:]
		}
		if began := b.full[0].began; b.said.Cause == nil && now-began >= busyTime {
			if i := b.strained(); i != nil {
				b.since, b.said = began, b.finding(now, i, c, kind, of)
				changes = append(changes, b.said)
			}
		}
	} else {
		b.full = nil
		if b.said.Cause != nil && now-b.calm >= calmTime {
			changes = append(changes, findingOf(BusyOver, kind, of, "{time}", seconds(b.calm-b.since)))
			b.said = Finding{}
		}
	}
	b.last, b.before, b.sockets = now, *c, make(map[string]Socket, len(sockets))
	for _, s := range sockets {
		b.sockets[s.Name] = s
	}
	return changes
}

// intakes returns what came to the sockets since the last look.
func (b *Load) intakes(sockets []Socket, passed time.Duration) (all []intake) {
	for _, s := range sockets {
		i := intake{socket: s.Name, from: s.From}
		if before, known := b.sockets[s.Name]; known {
			i.lost, i.bytes, i.counted = uint64(uint32(s.Overflows-before.Overflows)), s.Bytes-min(before.Bytes,
				s.Bytes), passed
		}
		if i.lost > 0 {
			i.losses = 1
		}
		if s.Waits {
			i.waits = 1
		}
		all = append(all, i)
	}
	return all
}

// strained returns the socket that gets more than the process takes; nil if there is none. It is
// the socket that lost most, if it overflowed in half of the seconds, because a burst can overflow
// a socket at any load. If the kernel does not count overflows, it is a socket at which packets
// waited after every second.
func (b *Load) strained() (most *intake) {
	sums := make(map[string]*intake)
	for _, s := range b.full {
		for _, i := range s.intakes {
			sum := sums[i.socket]
			if sum == nil {
				sum = &intake{socket: i.socket, from: i.from}
				sums[i.socket] = sum
			}
			sum.lost, sum.bytes, sum.counted = sum.lost+i.lost, sum.bytes+i.bytes, sum.counted+i.counted
			sum.losses, sum.waits = sum.losses+i.losses, sum.waits+i.waits
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		i := sums[name]
		if (2*i.losses >= len(b.full) || i.waits == len(b.full)) && (most == nil || i.lost > most.lost) {
			most = i
		}
	}
	return most
}

func (b *Load) finding(now time.Duration, i *intake, c *CPU, kind Kind, of string) Finding {
	cause := BusyMachine
	switch {
	case c.Quota > 0 && c.Quota < float64(min(c.Procs+1, c.CPUs)): // another P would have to share it
		cause = BusyQuota
	case c.Procs < c.CPUs:
		cause = BusyProcs
	}
	what := fmt.Sprintf("%d packets from %s were lost", i.lost, i.from)
	if i.lost == 0 {
		what = "packets from " + i.from + " waited all the time"
	}
	var used time.Duration
	for _, s := range b.full {
		used += s.used
	}
	took := now - b.full[0].began
	return findingOf(cause, kind, of, "{procs}", fmt.Sprint(c.Procs), "{cpus}", fmt.Sprint(c.CPUs), "{quota}",
		fmt.Sprintf("%.4g", c.Quota), "{time}", seconds(took),
		"{what}", what, "{share}", fmt.Sprintf("%.0f", 100*used.Seconds()/(c.limit()*took.Seconds())), "{rate}",
		fmt.Sprintf("%.3g Gb/s", float64(i.bytes)*8/max(i.counted.Seconds(), 1)/1e9), "{more}", fmt.Sprint(c.Procs+1))
}
