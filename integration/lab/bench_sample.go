package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sample is the resources used so far by the machine and the gateways.
type sample struct {
	busy, idle float64 // seconds of all CPUs
	own        float64 // CPU seconds of the lab's processes
	faults     float64 // page faults of both gateways
	calls      float64 // system calls on the gateways' sockets, culvert only
	packets    float64 // received by the gateways, after segmentation, culvert only
}

func (s sample) minus(t sample) sample {
	return sample{s.busy - t.busy, s.idle - t.idle, s.own - t.own, s.faults - t.faults, s.calls - t.calls,
		s.packets - t.packets}
}

func (s sample) plus(t sample) sample { return s.minus(sample{}.minus(t)) }

// others is the part of all CPU time that other processes used.
func (s sample) others() float64 { return max(0, s.busy-s.own) / (s.busy + s.idle) }

// Metrics of a gateway.
const (
	metricCalls    = "culvert_socket_calls_total"
	metricReceived = "culvert_received_packets_total"
)

// ticks per second in /proc, USER_HZ of every architecture.
const ticks = 100

// sample reads everything. It works only in the holder, which sees only the lab's processes.
func (l *Lab) sample(ctx context.Context, v *variant) (s sample, err error) {
	if !v.reference {
		metrics, err := counters(ctx, l.gateways(), metricCalls, metricReceived)
		if err != nil {
			return s, err
		}
		s.calls, s.packets = metrics[metricCalls], metrics[metricReceived]
	}
	for _, p := range l.gateways() {
		fields, err := processStat(strconv.Itoa(p.cmd.Process.Pid))
		if err != nil {
			return s, err
		}
		s.faults += fields[statMinorFaults] + fields[statMajorFaults]
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s, err
	}
	for _, p := range processes {
		if fields, err := processStat(filepath.Base(p)); err == nil { // otherwise it has ended
			s.own += (fields[statUser] + fields[statSystem]) / ticks
		}
	}
	s.busy, s.idle, err = readCPU()
	return s, err
}

// Fields of proc_pid_stat(5), counted from the third.
const (
	statMinorFaults = 10 - 3
	statMajorFaults = 12 - 3
	statUser        = 14 - 3
	statSystem      = 15 - 3
	statStart       = 22 - 3 // in clock ticks since boot
)

// processStat returns a process's numbers from the third field on.
func processStat(pid string) ([]float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return nil, err
	}
	// The second field is a name in parentheses, which may contain anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) <= statStart {
		return nil, fmt.Errorf("/proc/%s/stat: %d fields", pid, len(fields))
	}
	numbers := make([]float64, statStart+1)
	for i := range numbers {
		numbers[i], _ = strconv.ParseFloat(fields[i], 64) // the state is a letter
	}
	return numbers, nil
}

// readCPU reads the first line of /proc/stat: the time of all CPUs since the machine started, in
// seconds. Time stolen by other machines is neither busy nor idle.
func readCPU() (busy, idle float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat: %q", line)
	}
	for i, field := range fields[1:8] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		const idleField, waitField = 3, 4
		if i == idleField || i == waitField {
			idle += n / ticks
		} else {
			busy += n / ticks
		}
	}
	return busy, idle, nil
}

// running returns how long the process's threads have run, in seconds.
func (p *Process) running() (seconds float64, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		var nanoseconds float64
		if _, err := fmt.Sscan(string(text), &nanoseconds); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		seconds += nanoseconds / 1e9
	}
	return seconds, nil
}
