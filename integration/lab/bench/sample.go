package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"culvert/integration/lab"
)

// resources is the resources used so far by the machine and the gateways.
type resources struct {
	busy, idle float64 // seconds of all CPUs
	own        float64 // CPU seconds of the lab's processes
	faults     float64 // page faults of both gateways
	calls      float64 // system calls on the gateways' sockets, culvert only
	packets    float64 // received by the gateways, after segmentation, culvert only
}

func (s resources) minus(t resources) resources {
	return resources{s.busy - t.busy, s.idle - t.idle, s.own - t.own, s.faults - t.faults, s.calls - t.calls,
		s.packets - t.packets}
}

func (s resources) plus(t resources) resources { return s.minus(resources{}.minus(t)) }

// others is the part of all CPU time that other processes used.
func (s resources) others() float64 { return max(0, s.busy-s.own) / (s.busy + s.idle) }

// Metrics of a gateway.
const (
	metricCalls    = "culvert_socket_calls_total"
	metricReceived = "culvert_received_packets_total"
)

// ticks per second in /proc, USER_HZ of every architecture.
const ticks = 100

// sample reads everything. It works only in the holder, which sees only the lab's processes.
func sample(ctx context.Context, l *lab.Lab, v *lab.Variant) (s resources, err error) {
	if !v.Reference {
		metrics, err := lab.Counters(ctx, l.Gateways(), metricCalls, metricReceived)
		if err != nil {
			return s, err
		}
		s.calls, s.packets = metrics[metricCalls], metrics[metricReceived]
	}
	for _, p := range l.Gateways() {
		fields, err := lab.ProcessStat(strconv.Itoa(p.Cmd.Process.Pid))
		if err != nil {
			return s, err
		}
		s.faults += fields[lab.StatMinorFaults] + fields[lab.StatMajorFaults]
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s, err
	}
	for _, p := range processes {
		if fields, err := lab.ProcessStat(filepath.Base(p)); err == nil { // otherwise it has ended
			s.own += (fields[lab.StatUser] + fields[lab.StatSystem]) / ticks
		}
	}
	s.busy, s.idle, err = readCPU()
	return s, err
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
