package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"culvert/integration/lab"
	"culvert/integration/lab/plan"
	"culvert/integration/lab/step"
)

// Status describes a lab that is up.
type Status struct {
	Description string          `json:"description"`
	Dir         string          `json:"dir"`
	Hosts       []HostStatus    `json:"hosts"`
	Processes   []ProcessStatus `json:"processes"`
	Broken      []string        `json:"broken"` // faults made by break
}

// HostStatus is one host.
type HostStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Seen    string `json:"seen,omitempty"` // the address seen by the other cluster
}

// ProcessStatus is one gateway or node.
type ProcessStatus struct {
	Name    string `json:"name"`
	Host    string `json:"host"`
	Running bool   `json:"running"`
	Ended   string `json:"ended,omitempty"` // why it does not run
	Log     string `json:"log"`
}

// GetStatus describes the lab that is up.
func GetStatus(ctx context.Context) (*Status, error) { return ask(ctx, request{Do: doStatus}) }

// Break makes faults in the lab that is up; see Lab.Break.
func Break(ctx context.Context, names []string) (*Status, error) {
	return ask(ctx, request{Do: doBreak, Args: names})
}

// Mend removes faults of the lab that is up; see Lab.Mend.
func Mend(ctx context.Context, names []string) (*Status, error) {
	return ask(ctx, request{Do: doMend, Args: names})
}

// Restart restarts a gateway or node of the lab that is up; see Lab.Restart.
func Restart(ctx context.Context, host string) (*Status, error) {
	return ask(ctx, request{Do: doRestart, Host: host})
}

// ask sends a request without files. The holder completes it even if ctx ends.
func ask(ctx context.Context, r request) (*Status, error) {
	conn, err := dialHolder()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	answer, err := readResponse(conn)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: interrupted; the lab completes it", r.Do)
	}
	if err != nil {
		return nil, err
	}
	return answer.Status, nil
}

// dialTime is how long a starting or ending holder may take.
const dialTime = 5 * time.Second

func dialHolder() (*net.UnixConn, error) {
	for began := time.Now(); ; time.Sleep(step.Poll) {
		dir, err := upDir()
		if err != nil {
			return nil, err
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, socketFile)})
		if err == nil {
			return conn, nil
		}
		if time.Since(began) > dialTime {
			return nil, fmt.Errorf("lab: %w; it may still be starting, or see %s/holder.log", err, dir)
		}
	}
}

func readResponse(conn *net.UnixConn) (*response, error) {
	r := new(response)
	err := json.NewDecoder(conn).Decode(r)
	if err != nil {
		return nil, fmt.Errorf("lab: the lab has ended: %w", err)
	}
	if r.Error != "" {
		return nil, errors.New(r.Error)
	}
	return r, nil
}

func (l *server) status() *Status {
	s := &Status{Description: l.Options.String(), Dir: l.Dir, Broken: l.Broken()}
	for _, h := range l.Hosts {
		host := HostStatus{Name: h.Name, Address: h.Address.String()}
		for i := range plan.V4 {
			c := &plan.V4[i]
			if seen := c.Seen(h.Address); strings.HasPrefix(h.Name, c.Name+"/pod") {
				host.Seen = seen.String()
			}
		}
		s.Hosts = append(s.Hosts, host)
	}
	for _, p := range l.Processes {
		s.Processes = append(s.Processes, ProcessStatus{Name: p.Name(), Host: p.Host.Name, Running: p.Running(),
			Ended: l.whyEnded(p), Log: p.Log})
	}
	return s
}

// whyEnded returns why a process does not run; "" if it does.
func (l *server) whyEnded(p *lab.Process) string {
	if p.Running() {
		return ""
	}
	if f := l.OffBy(p.Host.Name); f != nil {
		return "kept off by " + f.Name
	}
	return p.HowEnded().Error() + "; culvert-lab restart " + p.Host.Name
}
