package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"culvert/integration/lab/netns"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// stopTimeout is how long a process may take to end cleanly.
const stopTimeout = 10 * time.Second

// Process is a culvert process inside a host.
type Process struct {
	Host *netns.Host
	Args []string // such as gateway --config FILE
	Log  string   // file with its standard output and error

	Cmd     *exec.Cmd
	ended   chan struct{} // closed when it has ended
	err     error         // what Wait returned, once ended is closed
	stopped atomic.Bool   // told to end
	sandbox *sandbox      // around it, or nil
	ready   func(context.Context, *netns.Host) error
}

// startProgram starts a program inside a host: culvert, or what stands for it. An unprivileged
// process has no capabilities and cannot gain any, although its user ID is 0; in a sandbox it has
// another user ID. The caller adds it to the lab's processes, or ends it.
func (l *Lab) startProgram(h *netns.Host, program string, privileged bool, args ...string) (*Process, error) {
	logs := filepath.Join(l.Dir, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	p := &Process{
		Host: h, Args: args, Log: filepath.Join(logs, strings.ReplaceAll(h.Name, "/", "-")+".log"),
		Cmd: exec.Command(program, args...), ended: make(chan struct{}),
	}
	log, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if !privileged && l.Options.Sandbox.Runsc != "" {
		if p.sandbox, p.Cmd, err = l.newSandbox(h, args); err != nil {
			return nil, fmt.Errorf("%s: sandbox: %w", h.Name, err)
		}
		privileged = true // runsc drops what it does not need
	}
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	p.Cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+l.Dir)
	if l.Options.Attacks {
		p.Cmd.Env = append(p.Cmd.Env, attackMemory)
	}
	err = h.Do(func() error {
		if !privileged {
			if err := dropCapabilities(); err != nil {
				return err
			}
		}
		return p.Cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: start culvert %s: %w", h.Name, args[0], err)
	}
	go func() {
		p.err = p.Cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// dropCapabilities removes from this thread all capabilities that an executed program could get: by
// execve(2) a program of user ID 0 gets its bounding set.
func dropCapabilities() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL { // past the last one
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// capabilities returns the effective capabilities of the process as a bit mask.
func (p *Process) capabilities(ctx context.Context) (uint64, error) {
	if p.sandbox != nil {
		return p.sandbox.capabilities(ctx)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(p.Cmd.Process.Pid)}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// Name is the kind and the place of the process.
func (p *Process) Name() string { return fmt.Sprintf("culvert %s in %s", p.Args[0], p.Host.Name) }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// waitReady polls until the process serves.
func (p *Process) waitReady(ctx context.Context) error {
	for {
		err := p.ready(ctx, p.Host)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended at once (%w): %s", p.Name(), p.HowEnded(), Tail(p.Log, 3))
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; see %s", p.Name(), err, p.Log)
		case <-time.After(step.Poll):
		}
	}
}

// gatewayReady asks the gateway.
func gatewayReady(ctx context.Context, h *netns.Host) error {
	_, err := gatewayGet(ctx, h, "/readyz")
	return err
}

// gatewayGet fetches a page from the gateway in a host.
func gatewayGet(ctx context.Context, h *netns.Host, path string) (string, error) {
	if h.Get != nil {
		return h.Get(ctx, "http://"+MetricsAddress+path)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+MetricsAddress+path, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Transport{DialContext: h.Dial, DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return "", fmt.Errorf("%s says %s: %s", path, response.Status, strings.TrimSpace(string(body)))
	}
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// nodeReady checks for what the node makes last: the route to the last prefix in its configuration,
// the other cluster's external CIDR.
func (l *Lab) nodeReady(_ context.Context, h *netns.Host) error {
	p := l.Plans()[0]
	last := netns.IPNet(p.Of(plan.Other(plan.Of(h.Name)).Name + "/").SeenExt)
	return h.Do(func() error {
		l, err := netlink.LinkByName(TunnelLink)
		if err != nil {
			return err
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
			&netlink.Route{LinkIndex: l.Attrs().Index, Dst: last}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
		if err == nil && len(routes) == 0 {
			err = fmt.Errorf("%s has no route to %s", TunnelLink, last)
		}
		return err
	})
}

// terminate asks the process to end.
func (p *Process) terminate() {
	p.stopped.Store(true)
	p.Signal(unix.SIGTERM)
}

// Signal sends a signal to the process.
func (p *Process) Signal(n unix.Signal) error {
	if p.sandbox != nil {
		return p.sandbox.signal(n)
	}
	return p.Cmd.Process.Signal(n)
}

// end ends processes by SIGTERM, in at most stopTimeout. The error reports those that did not end
// cleanly, and those that had ended by themselves.
func end(processes ...*Process) error {
	var errs []error
	var running []*Process
	for _, p := range processes {
		switch {
		case p.Running():
			running = append(running, p)
			p.terminate()
		case !p.stopped.Swap(true):
			errs = append(errs, fmt.Errorf("%s ended by itself: %w; see %s", p.Name(), p.HowEnded(), p.Log))
		}
	}
	deadline := time.After(stopTimeout)
	for _, p := range running {
		select {
		case <-p.ended:
		case <-deadline:
			for _, late := range running {
				late.Cmd.Process.Kill()
			}
			<-p.ended
		}
		if p.err != nil {
			errs = append(errs, fmt.Errorf("%s: ended with %w when asked to end within %v; see %s", p.Name(), p.err,
				stopTimeout, p.Log))
		}
	}
	return errors.Join(errs...)
}

// HowEnded is how the process has ended.
func (p *Process) HowEnded() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// Tail returns the last lines of a log file.
func Tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// RunTime returns how long the process's threads have run, in seconds.
func (p *Process) RunTime() (seconds float64, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Cmd.Process.Pid))
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

// attackMemory is what a gateway in a control group of 64 MiB chooses for itself.
const attackMemory = "GOMEMLIMIT=46976204"

// RemoveEnded removes processes that have ended from the list, and returns an error if there are
// any.
func (l *Lab) RemoveEnded() error {
	var errs []error
	l.Processes = slices.DeleteFunc(l.Processes, func(p *Process) bool {
		if p.Running() {
			return false
		}
		errs = append(errs, fmt.Errorf("%s ended (%w): %s", p.Name(), p.HowEnded(), Tail(p.Log, 1)))
		return true
	})
	return errors.Join(errs...)
}

// Fields of proc_pid_stat(5), counted from the third.
const (
	StatMinorFaults = 10 - 3
	StatMajorFaults = 12 - 3
	StatUser        = 14 - 3
	StatSystem      = 15 - 3
	StatStart       = 22 - 3 // in clock ticks since boot
)

// ProcessStat returns a process's numbers from the third field on.
func ProcessStat(pid string) ([]float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return nil, err
	}
	// The second field is a name in parentheses, which may contain anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) <= StatStart {
		return nil, fmt.Errorf("/proc/%s/stat: %d fields", pid, len(fields))
	}
	numbers := make([]float64, StatStart+1)
	for i := range numbers {
		numbers[i], _ = strconv.ParseFloat(fields[i], 64) // the state is a letter
	}
	return numbers, nil
}
