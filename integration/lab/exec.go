package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// request is the one message of a client to a holder; a request to execute
// comes with the three standard files.
type request struct {
	Do   verb     `json:"do"`
	Host string   `json:"host,omitempty"` // of doExec and doRestart
	Args []string `json:"args,omitempty"` // a command, or the names of faults
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
}

// verb is what a client asks for.
type verb string

const (
	doStatus  verb = "status"
	doExec    verb = "exec"
	doBreak   verb = "break"
	doMend    verb = "mend"
	doRestart verb = "restart"
)

// response is the holder's one message back.
type response struct {
	Error  string  `json:"error,omitempty"`
	Code   int     `json:"code"` // of the command, as a shell gives it
	Status *Status `json:"status,omitempty"`
}

// Status describes a lab that is up.
type Status struct {
	Description string          `json:"description"`
	Dir         string          `json:"dir"`
	Hosts       []HostStatus    `json:"hosts"`
	Processes   []ProcessStatus `json:"processes"`
	Broken      []string        `json:"broken"` // faults that lab break has made
}

// HostStatus is one host.
type HostStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Seen    string `json:"seen,omitempty"` // how the other cluster sees it
}

// ProcessStatus is one gateway or node.
type ProcessStatus struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Log     string `json:"log"`
}

const maxRequest = 1 << 20 // bytes; environments are large

// Serve calls listening and answers Exec and GetStatus until ctx is done.
func (l *Lab) Serve(ctx context.Context, listening func()) error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(l.Dir, socketFile)})
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	listening()
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		go func() {
			defer conn.Close()
			json.NewEncoder(conn).Encode(l.answer(ctx, conn))
		}()
	}
}

func (l *Lab) answer(ctx context.Context, conn *net.UnixConn) response {
	r, files, err := receive(conn)
	for _, f := range files {
		defer f.Close()
	}
	if err != nil {
		return response{Error: err.Error()}
	}
	if r.Do == doExec {
		code, err := l.execute(conn, r, files)
		if err != nil {
			return response{Error: err.Error()}
		}
		return response{Code: code}
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	switch r.Do {
	case doBreak:
		err = l.Break(ctx, r.Args...)
	case doMend:
		err = l.Mend(ctx, r.Args...)
	case doRestart:
		err = l.Restart(ctx, r.Host)
	}
	if err != nil {
		return response{Error: fmt.Sprintf("lab %s: %v", r.Do, err)}
	}
	return response{Status: l.status()}
}

// execute runs the command until it ends. Each byte the client sends meanwhile
// is a signal for it, and a client that goes takes the command with it.
func (l *Lab) execute(conn *net.UnixConn, r *request, files []*os.File) (code int, err error) {
	h := l.Host(r.Host)
	if h == nil {
		return 0, fmt.Errorf("lab exec: %w", l.noHost(r.Host))
	}
	if len(files) != 3 || len(r.Args) == 0 {
		return 0, errors.New("lab exec: no command")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.Env, cmd.Dir = r.Env, r.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.Do(cmd.Start); err != nil {
		return 0, fmt.Errorf("lab exec: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		signal := make([]byte, 1)
		for {
			_, err := conn.Read(signal)
			select {
			case <-ended:
				return
			default:
			}
			if err != nil {
				unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
				return
			}
			unix.Kill(-cmd.Process.Pid, unix.Signal(signal[0]))
		}
	}()
	cmd.Wait() // what it returns is in ProcessState
	close(ended)
	return exitCode(cmd.ProcessState), nil
}

// exitCode is a process's exit status as shells give it.
func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// receive reads a request and the files that come with it.
func receive(conn *net.UnixConn) (*request, []*os.File, error) {
	buffer := make([]byte, maxRequest)
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(buffer, oob)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: %w", err)
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, fmt.Errorf("lab: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, files, fmt.Errorf("lab: %w", err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "client"))
		}
	}
	// The rest of a long request follows without files.
	r := new(request)
	rest := io.MultiReader(strings.NewReader(string(buffer[:n])), conn)
	if err := json.NewDecoder(io.LimitReader(rest, maxRequest)).Decode(r); err != nil {
		return nil, files, fmt.Errorf("lab: bad request: %w", err)
	}
	return r, files, nil
}

// Exec runs a command inside a host of the lab that is up, with this process's
// standard files, environment and folder, and returns its exit status.
func Exec(host string, args []string) (code int, err error) {
	conn, err := dialHolder()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	dir, err := os.Getwd()
	if err != nil {
		return 0, fmt.Errorf("lab exec: %w", err)
	}
	text, err := json.Marshal(request{Do: doExec, Host: host, Args: args, Env: os.Environ(), Dir: dir})
	if err != nil {
		return 0, err
	}
	rights := unix.UnixRights(0, 1, 2)
	n, _, err := conn.WriteMsgUnix(text, rights, nil)
	if err == nil && n < len(text) {
		_, err = conn.Write(text[n:])
	}
	if err != nil {
		return 0, fmt.Errorf("lab exec: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			conn.Write([]byte{byte(s.(syscall.Signal))})
		}
	}()
	r, err := readResponse(conn)
	if err != nil {
		return 0, err
	}
	return r.Code, nil
}

// GetStatus describes the lab that is up.
func GetStatus(ctx context.Context) (*Status, error) { return ask(ctx, request{Do: doStatus}) }

// Break makes faults in the lab that is up; see Lab.Break.
func Break(ctx context.Context, names []string) (*Status, error) {
	return ask(ctx, request{Do: doBreak, Args: names})
}

// Mend takes faults of the lab that is up back; see Lab.Mend.
func Mend(ctx context.Context, names []string) (*Status, error) {
	return ask(ctx, request{Do: doMend, Args: names})
}

// Restart starts a gateway or node of the lab that is up anew; see Lab.Restart.
func Restart(ctx context.Context, host string) (*Status, error) {
	return ask(ctx, request{Do: doRestart, Host: host})
}

// ask sends a request without files. The holder completes what it was asked for
// also when ctx ends.
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
		return nil, fmt.Errorf("lab %s: interrupted; the lab completes it", r.Do)
	}
	if err != nil {
		return nil, err
	}
	return answer.Status, nil
}

func dialHolder() (*net.UnixConn, error) {
	dir, err := upDir()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, socketFile)})
	if err != nil {
		return nil, fmt.Errorf("lab: %w; it may still be starting, or see %s/holder.log", err, dir)
	}
	return conn, nil
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

func (l *Lab) status() *Status {
	s := &Status{Description: l.options.String(), Dir: l.Dir, Broken: l.Broken()}
	for _, h := range l.hosts {
		host := HostStatus{Name: h.Name, Address: h.Address.String()}
		for i := range clusters {
			c := &clusters[i]
			if seen := c.Seen(h.Address); strings.HasPrefix(h.Name, c.Name+"/pod") {
				host.Seen = seen.String()
			}
		}
		s.Hosts = append(s.Hosts, host)
	}
	for _, p := range l.processes {
		s.Processes = append(s.Processes, ProcessStatus{Name: p.Name(), Running: p.Running(), Log: p.Log})
	}
	return s
}
